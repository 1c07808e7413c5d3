// NgramDrafter: drafts what followed an earlier occurrence of the last tokens, in prompt or answer.
// It needs no weights, and works where answers repeat: edited code, quotations, lists.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/draft/drafter.h"

namespace lathe {

class NgramDrafter : public Drafter {
 public:
  /// Looks up the last kLongest tokens first, then fewer, down to kShortest. The latest occurrence
  /// wins, since answers repeat what is near. O(1) per token of a request and per draft.
  static constexpr std::int64_t kLongest = 4;
  static constexpr std::int64_t kShortest = 2;

  void propose(std::span<DraftRequest> requests) override;
  void forget(RequestId id) override { indices_.erase(id.value); }

 private:
  static constexpr std::int64_t kSizes = kLongest - kShortest + 1;
  struct Index {
    std::int64_t tokens = 0;  // indexed tokens
    // [size - kShortest] N-gram hash -> the position after its latest occurrence.
    std::array<std::unordered_map<std::uint64_t, std::int64_t>, kSizes> after;
  };
  static void learn(Index& index, std::span<const std::int32_t> tokens);
  static std::int64_t find(const Index& index, std::span<const std::int32_t> tokens);

  std::unordered_map<std::uint64_t, Index> indices_;  // by request
};

}  // namespace lathe
