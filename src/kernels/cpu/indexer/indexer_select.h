// Exact top-k of one row in a fixed amount of memory; the scores are added in pieces.
//
// A score and its position are combined to a 64-bit rank; larger is better. The high half is the
// score's bits in an order-preserving form, the low half the complement of the position. Ranks are
// distinct, so the k largest are one well-defined set, whatever the pieces, and ties go to the
// lower position.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

namespace lathe {

/// The rank of a score, which is not NaN, at a position >= 0. -0 ranks as 0.
inline std::uint64_t index_rank(float score, std::int32_t position) {
  // Adding 0 turns -0 into +0.
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);
  const std::uint32_t ordered = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return std::uint64_t{ordered} << 32 | (0xffffffffu - static_cast<std::uint32_t>(position));
}
inline std::int32_t rank_position(std::uint64_t rank) {
  return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(rank));
}
inline float rank_score(std::uint64_t rank) {
  const auto ordered = static_cast<std::uint32_t>(rank >> 32);
  return std::bit_cast<float>(ordered ^ ((ordered >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

class RunningTopK {
 public:
  RunningTopK() = default;
  /// Keeps the k >= 1 best scores. `room` is its memory and has more than k entries.
  RunningTopK(std::span<std::uint64_t> room, std::int64_t k) : room_(room), k_(k) {}

  /// Adds the scores of positions first, first + 1, ... NaN is never selected.
  void add(std::span<const float> scores, std::int32_t first) {
    for (std::size_t i = 0; i < scores.size(); ++i) {
      // The comparison is false for NaN too.
      if (!(scores[i] >= floor_score_)) continue;
      add(index_rank(scores[i], first + static_cast<std::int32_t>(i)));
    }
  }
  void add(std::uint64_t rank) {
    if (rank < floor_) return;
    if (count_ == std::ssize(room_)) shrink();
    room_[static_cast<std::size_t>(count_++)] = rank;
  }

  /// The ranks of the best scores, at most k, in no particular order.
  std::span<std::uint64_t> best() {
    if (count_ > k_) shrink();
    return room_.first(static_cast<std::size_t>(count_));
  }

 private:
  void shrink() {
    std::nth_element(room_.begin(), room_.begin() + (k_ - 1), room_.begin() + count_,
                     std::greater<>());
    count_ = k_;
    // Ranks are distinct, so from here on a score must be better than the k-th.
    floor_ = room_[static_cast<std::size_t>(k_ - 1)];
    floor_score_ = rank_score(floor_);
  }

  std::span<std::uint64_t> room_;
  std::int64_t k_ = 0;
  std::int64_t count_ = 0;
  std::uint64_t floor_ = 0;
  float floor_score_ = -std::numeric_limits<float>::infinity();
};

}  // namespace lathe
