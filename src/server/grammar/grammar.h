// Grammar: a compiled source.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/result.h"
#include "server/grammar/automaton.h"
#include "server/grammar/masks.h"
#include "server/grammar/source.h"
#include "server/grammar/vocabulary.h"

namespace lathe::grammar {

/// Thread-safe.
class Grammar {
 public:
  /// `vocabulary` outlives it. Errors name source.path or a path below it: unsupported (a keyword,
  /// a construct of a regular expression, a limit), malformed, exhausted (limits), out_of_range (no
  /// text is allowed).
  static Result<std::shared_ptr<Grammar>> compile(const Source& source,
                                                  const Vocabulary& vocabulary,
                                                  const Limits& limits = {});

  const Automaton& automaton() const { return automaton_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  /// The masks that requests share. Masks that have grown too large, passed as `full`, are
  /// replaced.
  std::shared_ptr<Masks> masks(const Masks* full = nullptr);

 private:
  Grammar(Automaton automaton, const Vocabulary& vocabulary)
      : automaton_(std::move(automaton)), vocabulary_(vocabulary) {}

  const Automaton automaton_;
  const Vocabulary& vocabulary_;
  std::mutex mutex_;
  std::shared_ptr<Masks> masks_;
};

/// Masks that hold more bytes are replaced by empty ones.
inline constexpr std::int64_t kMostMaskBytes = std::int64_t{64} << 20;

}  // namespace lathe::grammar
