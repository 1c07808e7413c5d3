#include "server/grammar/cache.h"

#include <fmt/format.h>

namespace lathe::grammar {
namespace {

// Of all grammars kept; those in use may hold more.
constexpr std::int64_t kMostBytes = std::int64_t{512} << 20;

}  // namespace

// Whether another grammar may be made. If not, the cache has let go of its own.
bool Cache::has_room() {
  const auto held = [this] {
    std::erase_if(made_, [](const auto& made) { return made.expired(); });
    std::int64_t bytes = 0;
    for (const auto& made : made_) {
      if (const auto grammar = made.lock()) bytes += grammar->bytes();
    }
    return bytes;
  };
  if (held() < most_bytes_) return true;
  by_key_.clear();
  entries_.clear();
  return held() < most_bytes_;
}

Result<std::shared_ptr<Grammar>> Cache::get(const Source& source, const Limits& limits) {
  std::string key = source.key();
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = by_key_.find(key); at != by_key_.end()) {
      entries_.splice(entries_.begin(), entries_, at->second);
      ++found_;
      return at->second->second;
    }
    if (!has_room()) {
      ++refused_;
      return Error{ErrorCode::exhausted, kAllConstraints,
                   fmt::format("at most {} bytes at once", most_bytes_), "more", "retry later"};
    }
  }
  // Compile without the lock, since it may take long. Two requests may duplicate the work.
  auto made = Grammar::compile(source, vocabulary_, limits);
  if (!made) {
    ++refused_;
    return made.error();
  }
  ++compiled_;
  const std::lock_guard lock(mutex_);
  made_.push_back(*made);
  if (by_key_.contains(key)) return made;
  entries_.emplace_front(key, *made);
  by_key_.emplace(std::move(key), entries_.begin());
  std::int64_t bytes = 0;
  for (const Entry& e : entries_) bytes += e.second->bytes();
  while (entries_.size() > capacity_ || (bytes > kMostBytes && entries_.size() > 1)) {
    bytes -= entries_.back().second->bytes();
    by_key_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return made;
}

}  // namespace lathe::grammar
