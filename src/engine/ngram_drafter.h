// NgramDrafter: drafts what followed the last tokens when they came before, in the prompt or in the
// answer. It needs no weights, and it is right where an answer repeats: code that is edited,
// passages that are quoted, lists.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/drafter.h"

namespace lathe {

class NgramDrafter : public Drafter {
 public:
  /// Looks for the last kLongest tokens first and for the last kShortest in the end; of several
  /// places the latest counts, as answers repeat what is near. O(1) for each new token of a
  /// request and for each draft.
  static constexpr std::int64_t kLongest = 4;
  static constexpr std::int64_t kShortest = 2;

  void propose(std::span<DraftRequest> requests) override;
  void forget(RequestId id) override { indices_.erase(id.value); }

 private:
  static constexpr std::int64_t kSizes = kLongest - kShortest + 1;
  struct Index {
    std::int64_t tokens = 0;  // that it knows
    // [size - kShortest] By an n-gram's hash: the place after its latest occurrence.
    std::array<std::unordered_map<std::uint64_t, std::int64_t>, kSizes> after;
  };
  static void learn(Index& index, std::span<const std::int32_t> tokens);
  static std::int64_t find(const Index& index, std::span<const std::int32_t> tokens);

  std::unordered_map<std::uint64_t, Index> indices_;  // by request
};

}  // namespace lathe
