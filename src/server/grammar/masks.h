// Masks: which tokens may come next at each place of an automaton.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "server/grammar/vocabulary.h"
#include "server/grammar/walk.h"

namespace lathe::grammar {

/// The work of one mask, about 50 ms where nothing is known yet: the places that the tokens lead
/// to, each counted as often as the text can be read in another way there. Schemas need thousands.
inline constexpr std::int64_t kMostMaskWork = 500'000;

/// Thread-safe. Both arguments outlive it.
class Masks {
 public:
  Masks(const Automaton& automaton, const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), walk_(automaton) {}

  Place start() const { return walk_.start(); }
  /// The place after a token's text, or Walk::kNowhere.
  Place step(Place place, std::int32_t token);

  struct Next {
    bool any = false;      // some token may come next
    bool may_end = false;  // the text may end
  };
  /// Sets the bits [(vocab + 31) / 32] of tokens that may come next, and no others. Needs
  /// microseconds if the place, or one like it, was filled before; otherwise it walks the
  /// vocabulary. A place beyond kMostMaskWork, which cost_too_much() did not find, must not stall
  /// the engine: long tokens are left out there, and a text still can go on and end as the grammar
  /// has it. Which ones does not depend on earlier calls.
  void fill(Place place, std::span<std::uint32_t> bits, Next& out);

  /// What may come first.
  Next at_start();
  /// Whether some place that a search finds has a mask of more than kMostMaskWork. The search
  /// follows some texts for a bounded number of places, always the same ones, so the answer depends
  /// on the grammar and the vocabulary alone. Call it before any fill(). `stop`:
  /// ends it early, with false.
  bool cost_too_much(const std::atomic<bool>* stop);

  /// Memory held; it grows with the places visited.
  std::int64_t bytes() const;
  /// Translates a place of other masks of the same automaton.
  Place bring(const Masks& from, Place place);

 private:
  // Where a token leaves the rules of an inner place; what may follow there depends on the outer
  // place.
  struct Exit {
    std::uint32_t node;
    Place place;
  };
  struct Entry {
    std::vector<std::uint32_t> bits;
    std::vector<Exit> exits;  // at nodes that have children
    std::uint8_t longest;     // bytes of the longest tokens looked at
  };
  bool spend(Place place);
  std::vector<Place> find_wide(const std::atomic<bool>* stop);
  bool visit(std::uint32_t node, Place from, std::uint8_t longest, std::span<std::uint32_t> bits,
             std::vector<Exit>* exits);
  Entry make_entry(Place inner, std::size_t words);
  bool visit_exits(const Entry& entry, Place place, std::uint8_t longest,
                   std::span<std::uint32_t> bits);

  const Vocabulary& vocabulary_;
  mutable std::mutex mutex_;
  Walk walk_;
  std::unordered_map<Place, Entry> entries_;  // by inner place
  std::int64_t entry_bytes_ = 0;
  // The work of a visit: the widths of the places that it meets, each counted once.
  std::int64_t work_ = 0;
  std::vector<std::uint32_t> met_;  // [places] the last visit that met each
  std::uint32_t visit_ = 0;
  std::array<Place, kLongestToken + 1> path_{};  // [depth]
};

}  // namespace lathe::grammar
