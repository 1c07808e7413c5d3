// Cache: the most recently used grammars, shared by requests with equal sources.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/grammar/grammar.h"

namespace lathe::grammar {

/// Error::field where the grammars of requests in progress hold too much memory.
inline constexpr const char* kAllConstraints = "constraints of all requests";

/// Thread-safe.
class Cache {
 public:
  /// `most_bytes`: of grammars that the cache or a request holds. One may add some 200 MiB.
  explicit Cache(Vocabulary vocabulary, std::size_t capacity = 128,
                 std::int64_t most_bytes = std::int64_t{4} << 30)
      : vocabulary_(std::move(vocabulary)), capacity_(capacity), most_bytes_(most_bytes) {}

  /// Errors: Grammar::compile()'s; exhausted, with kAllConstraints as its field.
  Result<std::shared_ptr<Grammar>> get(const Source& source, const Limits& limits = {});
  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Since the start.
  std::int64_t compiled() const { return compiled_.load(std::memory_order_relaxed); }
  std::int64_t found() const { return found_.load(std::memory_order_relaxed); }
  std::int64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  using Entry = std::pair<std::string, std::shared_ptr<Grammar>>;  // key of the source, grammar

  bool has_room();

  const Vocabulary vocabulary_;
  const std::size_t capacity_;
  const std::int64_t most_bytes_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
  std::vector<std::weak_ptr<Grammar>> made_;  // also what only requests hold
  std::atomic<std::int64_t> compiled_{0}, found_{0}, refused_{0};
};

}  // namespace lathe::grammar
