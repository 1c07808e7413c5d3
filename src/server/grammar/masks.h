// Masks: which tokens may come next at each place of an automaton.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "server/grammar/vocabulary.h"
#include "server/grammar/walk.h"

namespace lathe::grammar {

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
  /// Sets the bits [(vocab + 31) / 32] of the tokens that may come next, and no others. Takes
  /// microseconds if the place, or one like it, was filled before; otherwise walks the vocabulary.
  /// Returns false if the automaton has too many places here to finish in time.
  bool fill(Place place, std::span<std::uint32_t> bits, Next& out);

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
  };
  bool visit(std::uint32_t node, Place from, std::span<std::uint32_t> bits,
             std::vector<Exit>* exits);

  const Vocabulary& vocabulary_;
  mutable std::mutex mutex_;
  Walk walk_;
  std::unordered_map<Place, Entry> entries_;  // by inner place
  std::int64_t entry_bytes_ = 0;
  std::int64_t work_end_ = 0;                    // the call's limit on the walk's work
  std::array<Place, kLongestToken + 1> path_{};  // [depth]
};

}  // namespace lathe::grammar
