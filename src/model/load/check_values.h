// Looks for values that kernels do not check: of quantised matrices (kernels/linear.h), and NaN
// that would not reach the logits.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/linear.h"
#include "kernels/weight_source.h"
#include "model/weights/tensor_table.h"

namespace lathe {

/// Element i of a tensor of floats, of e4m3 or of exponents (F8_E8M0 or U8), as f32.
float float_at(const CheckpointTensor& t, std::int64_t i);

/// Which scales a format has.
enum class ScaleSign {
  any,           // int4: AutoRound writes negative ones; e4m3 scales of NVFP4, which have a sign
  not_negative,  // fp8 and MXFP4: the largest magnitude of a block over the largest code
  positive,      // one for a whole matrix, which 0 would make nothing of
};

/// The first scale that is NaN, not below 2^119 in size, or of another sign than `sign` says, as an
/// error that names the tensor, the value and its place. inverse: 1 / scale counts, and has the
/// limit.
std::optional<Error> wild_scale(const CheckpointTensor& scales, ScaleSign sign = ScaleSign::any,
                                bool inverse = false);

/// Whether a matrix has NaN codes of e4m3, as an error that names `tensor`. part: the tensor's rows
/// and columns that w has. source: copies w's bytes; null: they are read at their address. Errors:
/// also the source's.
std::optional<Error> nan_code(const WeightView& w, const std::string& tensor,
                              const TensorPart& part, const WeightSource* source);

/// Whether a tensor of floats (F32, BF16 or F16) has NaN, as an error that names it and the first.
/// source: as for nan_code().
std::optional<Error> nan_value(const CheckpointTensor& t, const WeightSource* source);

}  // namespace lathe
