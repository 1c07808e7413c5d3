#include "model/load/part.h"

#include <cstring>

#include "base/check.h"
#include "kernels/ref/linear.h"

namespace lathe {
namespace {

// Whether a range of an axis of `size` elements has whole blocks, the last one maybe short.
bool whole_blocks(const Range& range, std::int64_t size, std::int64_t block) {
  return range.first % block == 0 && (range.count % block == 0 || range.end() == size);
}

// Copies columns [first, first + count) of each row, in elements of `bits` bits.
std::byte* copy_columns(const std::byte* from, std::int64_t rows, std::int64_t cols,
                        const Range& part, int bits, ThreadPool* threads, ModelWeights& weights) {
  const std::int64_t row = cols * bits / 8, width = part.count * bits / 8;
  std::byte* to = weights.take(rows * width);
  constexpr std::int64_t kTaskBytes = 1 << 20;
  const std::int64_t each =
      std::max<std::int64_t>(1, kTaskBytes / std::max<std::int64_t>(1, width));
  for_each(threads, (rows + each - 1) / each, [&](std::int64_t task) {
    for (std::int64_t r = task * each; r < std::min(rows, (task + 1) * each); ++r) {
      std::memcpy(to + r * width, from + r * row + part.first * bits / 8,
                  static_cast<std::size_t>(width));
    }
  });
  return to;
}

// The part's columns of `data`, its first row, that the source copies. Null: it has no addresses.
const std::byte* promise_columns(const WeightView& whole, const TensorPart& part,
                                 const std::byte* data, ModelWeights& weights, FileSource& source) {
  const int bits = bits_of(whole.dtype);
  const std::int64_t width = part.cols.count * bits / 8;
  const std::byte* columns = source.columns(data, part.rows.count, whole.cols * bits / 8,
                                            part.cols.first * bits / 8, width);
  if (columns != nullptr) weights.bytes += part.rows.count * width;
  return columns;
}

// Whether a part begins or ends inside a block of scales, or its columns are spread over the
// matrix.
bool is_cut(const WeightView& whole, const TensorPart& part) {
  const Range &rows = part.rows, &cols = part.cols;
  if (whole.dtype == DType::e4m3 && whole.scales != nullptr && !whole.scale_rows) {
    return !whole_blocks(rows, whole.rows, kWeightBlock) ||
           !whole_blocks(cols, whole.cols, kWeightBlock);
  }
  if (whole.dtype != DType::u4 || cols.count == whole.cols) return false;
  return whole.columns != nullptr || !whole_blocks(cols, whole.cols, whole.groups.size);
}

// The part's columns of scales and zero points. groups: of the part's rows.
GroupScales group_columns(const GroupScales& groups, std::int64_t cols, const TensorPart& part,
                          ThreadPool* threads, ModelWeights& weights) {
  const Range columns{part.cols.first / groups.size, part.cols.count / groups.size};
  const std::int64_t across = cols / groups.size;
  GroupScales out = groups;
  out.data = copy_columns(groups.data, part.rows.count, across, columns, bits_of(groups.dtype),
                          threads, weights);
  if (groups.zeros != nullptr) {
    const auto* zeros = reinterpret_cast<const std::byte*>(groups.zeros);
    out.zeros = reinterpret_cast<const std::uint8_t*>(
        copy_columns(zeros, part.rows.count, across, columns, 8, threads, weights));
  }
  return out;
}

}  // namespace

bool is_whole(const TensorSpec& spec) { return spec.part.elements() == spec.elements(); }

WeightView widened_part(const WeightView& whole, const TensorPart& part, ThreadPool* threads,
                        ModelWeights& weights) {
  const std::int64_t rows = part.rows.count, cols = part.cols.count;
  float* to = weights.take_floats(rows * cols);
  for_each(threads, rows, [&](std::int64_t r) {
    for (std::int64_t k = 0; k < whole.cols; ++k) {
      const std::int64_t c = whole.columns == nullptr ? k : whole.columns[k];
      if (!part.cols.contains(c)) continue;
      to[r * cols + c - part.cols.first] = weight_at(whole, part.rows.first + r, k);
    }
  });
  return {reinterpret_cast<const std::byte*>(to), DType::f32, rows, cols};
}

WeightView matrix_part(const WeightView& whole, const TensorPart& part, ThreadPool* threads,
                       ModelWeights& weights, FileSource* source) {
  const Range &rows = part.rows, &cols = part.cols;
  if (rows.count == whole.rows && cols.count == whole.cols) return whole;
  if (is_cut(whole, part)) return widened_part(whole, part, threads, weights);
  LATHE_CHECK(whole.dtype != DType::e2m1 || whole_blocks(cols, whole.cols, kMxBlock),
              "columns of whole blocks");
  WeightView out = rows_of(whole, rows.first, rows.count);
  if (cols.count == whole.cols) return out;
  out.cols = cols.count;
  const std::byte* const data = out.data;
  out.data = source == nullptr ? nullptr : promise_columns(whole, part, data, weights, *source);
  if (out.data == nullptr) {
    out.data =
        copy_columns(data, rows.count, whole.cols, cols, bits_of(whole.dtype), threads, weights);
  }
  const auto blocks = [](const Range& range, std::int64_t block) {
    return Range{range.first / block, (range.count + block - 1) / block};
  };
  if (out.scales != nullptr && whole.dtype == DType::e4m3 && !whole.scale_rows) {
    const std::byte* scales =
        copy_columns(reinterpret_cast<const std::byte*>(out.scales), weight_blocks(rows.count),
                     weight_blocks(whole.cols), blocks(cols, kWeightBlock), 32, nullptr, weights);
    out.scales = reinterpret_cast<const float*>(scales);
  }
  if (out.mx_scales != nullptr) {
    const std::byte* scales =
        copy_columns(reinterpret_cast<const std::byte*>(out.mx_scales), rows.count,
                     whole.cols / kMxBlock, blocks(cols, kMxBlock), 8, threads, weights);
    out.mx_scales = reinterpret_cast<const ue8m0*>(scales);
  }
  if (out.groups.data != nullptr)
    out.groups = group_columns(out.groups, whole.cols, part, threads, weights);
  return out;
}

std::vector<float> vector_part(const TensorSpec& spec, std::span<const float> whole) {
  const TensorPart& part = spec.part;
  if (is_whole(spec)) return {whole.begin(), whole.end()};
  LATHE_CHECK(part.cols.count == 1 || part.empty(), "a vector, or one for each matrix of a stack");
  std::vector<float> out;
  const std::int64_t each = spec.shape.back();
  for (std::int64_t m = part.matrices.first; !part.empty() && m < part.matrices.end(); ++m) {
    const auto from = whole.begin() + m * each + part.rows.first;
    out.insert(out.end(), from, from + part.rows.count);
  }
  return out;
}

}  // namespace lathe
