// Parts of tensors for the tables of tensors.
#pragma once

#include <cstdint>

#include "attn/ranks.h"
#include "model/weights/tensor_table.h"

namespace lathe {

/// The elements of `units` whose unit has `each` elements: heads to rows of a projection.
constexpr Range times(const Range& units, std::int64_t each) {
  return {units.first * each, units.count * each};
}

/// A rank's rows and columns of one expert's matrix.
struct ExpertCut {
  Range rows, cols;
};

/// The part of an expert's matrix, which is a tensor of its own; empty if the expert is on other
/// ranks.
TensorPart expert_part(const Share& share, std::int64_t expert, const ExpertCut& cut);

}  // namespace lathe
