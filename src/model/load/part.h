// A rank's parts of whole tensors in host memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "kernels/linear.h"
#include "model/load/file_source.h"
#include "model/weights/tensor_table.h"
#include "model/weights/weights.h"

namespace lathe {

/// Whether the part is the whole tensor.
bool is_whole(const TensorSpec& spec);

/// Rows and columns of a whole matrix, with their scales. Rows are a view; columns are copied to
/// memory of `weights`, or, with a source, copied by it when a backend asks for them: only their
/// scales are copied here, and data of the result is FileSource::columns(). A matrix that is not
/// cut at whole blocks or groups of scales is widened to f32, and so are columns of one in act
/// order (WeightView::columns).
WeightView matrix_part(const WeightView& whole, const TensorPart& part, ThreadPool* threads,
                       ModelWeights& weights, FileSource* source = nullptr);

/// Elements of a whole vector, or of a table with a row for each matrix of a stack.
std::vector<float> vector_part(const TensorSpec& spec, std::span<const float> whole);

/// An f32 copy of rows and columns, which can be cut anywhere. Columns are in the order of x.
WeightView widened_part(const WeightView& whole, const TensorPart& part, ThreadPool* threads,
                        ModelWeights& weights);

}  // namespace lathe
