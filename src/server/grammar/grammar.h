// Grammar: a compiled source.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "server/grammar/automaton.h"
#include "server/grammar/masks.h"
#include "server/grammar/source.h"
#include "server/grammar/token_graph.h"
#include "server/grammar/vocabulary.h"

namespace lathe::grammar {

/// Thread-safe.
class Grammar {
 public:
  /// `vocabulary` outlives it. Errors name source.path or a path below it: unsupported (a keyword,
  /// a construct of a regular expression, a limit), malformed, exhausted (limits; masks that cost
  /// too much), out_of_range (no text is allowed, or none that source.tokens can write).
  static Result<std::shared_ptr<Grammar>> compile(const Source& source,
                                                  const Vocabulary& vocabulary,
                                                  const Limits& limits = {});

  const Automaton& automaton() const { return automaton_; }
  /// Set if few tokens may write the text: it then has what they can write, and masks() is not
  /// used. Otherwise the usable tokens have one for each byte, so no text comes to a dead end.
  const TokenGraph* graph() const { return graph_ ? &*graph_ : nullptr; }
  /// Clears the bits [(vocab + 31) / 32] of tokens that the source leaves out.
  void keep_usable(std::span<std::uint32_t> bits) const {
    for (std::size_t i = 0; i < usable_.size(); ++i) bits[i] &= usable_[i];
  }
  bool is_usable(std::int32_t token) const { return usable_.empty() || has_bit(usable_, token); }
  /// A path in the schema of a tool, or, if `tool` is their number, in Source::schema or grammar.
  struct SchemaPath {
    std::size_t tool;
    std::string rest;  // after the field's own path; beyond all tools: the whole path
  };
  /// Paths of the constraints that are not followed in full: those that a lenient source leaves
  /// out, and each `oneOf` that is followed as `anyOf`. `source` has the key that it was made of.
  std::vector<std::string> ignored(const Source& source) const;
  /// What compiling it needed, in Limits' steps.
  std::int64_t work() const { return work_; }
  /// Memory held.
  std::int64_t bytes();
  const Vocabulary& vocabulary() const { return vocabulary_; }
  /// The masks that requests share. Masks that have grown too large, passed as `full`, are
  /// replaced.
  std::shared_ptr<Masks> masks(const Masks* full = nullptr);

 private:
  Grammar(Automaton automaton, const Vocabulary& vocabulary, std::vector<std::uint32_t> usable)
      : automaton_(std::move(automaton)), vocabulary_(vocabulary), usable_(std::move(usable)) {}

  const Automaton automaton_;
  const Vocabulary& vocabulary_;
  const std::vector<std::uint32_t> usable_;  // Source::tokens
  std::int64_t work_ = 0;
  std::vector<SchemaPath> ignored_;
  std::optional<TokenGraph> graph_;
  std::mutex mutex_;
  std::shared_ptr<Masks> masks_;
};

/// Constraints that need more than Limits::work.
Error too_much_work(const std::string& path);

/// Masks that hold more bytes are replaced by empty ones.
inline constexpr std::int64_t kMostMaskBytes = std::int64_t{64} << 20;

}  // namespace lathe::grammar
