// What softmax weights are relative to.
//
// Weights are 2^(score - reference): a line's reference is the maximum at the time when a score last
// exceeded it by more than 2^8, so sums are seldom rescaled. Weights stay below 2^8 and sums far below
// f32's bounds, and the reference cancels out of the result.
#pragma once

namespace lathe::cuda {

inline constexpr float kNoKey = -__builtin_huge_valf();  // the score of a hidden key
inline constexpr float kReferenceSlack = 8;              // log2

}  // namespace lathe::cuda
