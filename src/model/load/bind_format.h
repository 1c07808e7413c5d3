// Binds a quantised matrix to the tensors of its format.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/threads.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/linear.h"
#include "model/weights/weight_formats.h"
#include "model/weights/weights.h"

namespace lathe {

/// What the tensors' own bytes do not say.
struct FormatOptions {
  bool gptq_v2 = false;       // zero points are stored as they are, not one less
  bool no_zeros = false;      // GPTQ's zero points must all be 8, and are dropped
  bool headers_only = false;  // binds nothing
  // Checks shapes before packing, the order of columns, and zero points that are dropped.
  bool contents = true;
  bool has_zeros = false;     // compressed-tensors' groups must have zero points
  bool has_order = false;     // GPTQ's columns must have an order
  bool rows_ordered = false;  // compressed-tensors' columns must have an order
  // For messages: columns of a group according to config.json, or 0; whether some matrix of the
  // checkpoint is in the format, or empty.
  std::int32_t group = 0;
  std::function<bool(const WeightFormat&)> is_used = nullptr;
};

struct BoundFormat {
  const WeightFormat* format = nullptr;
  WeightView weight;
  const CheckpointTensor* scales = nullptr;
  const CheckpointTensor* factor = nullptr;  // or null
  std::vector<std::string_view> read;        // names of tensors, the checkpoint's
  std::string missing;                       // a tensor's name, or several: "A or B"
  std::string misshapen;                     // "NAME DTYPE [shape] (wanted ...)", if one is
};

/// Binds matrix [rows, cols] of the module in the first of weight_formats() that fits. Returns
/// false, with `out` unchanged, if none of the formats' tensors of codes is there, nor scales in
/// place of a plain matrix: the matrix is not quantised. find() returns null for an unknown name.
/// What `weights` has to hold is added to it; codes and scales in Lathe's own form stay in the
/// file's mapping. Where no row fits, the complaints are those of the row that the tensors resemble
/// most.
bool bind_format(const std::function<const CheckpointTensor*(const std::string&)>& find,
                 const std::string& module, std::int64_t rows, std::int64_t cols,
                 const FormatOptions& options, ThreadPool* threads, ModelWeights& weights,
                 BoundFormat& out);

/// Whether the module has the tensors of the format, by names and dtypes.
bool is_in_format(const std::function<const CheckpointTensor*(const std::string&)>& find,
                  const std::string& module, const WeightFormat& format);

}  // namespace lathe
