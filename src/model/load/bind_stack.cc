#include "model/load/tensor_loader.h"

#include <fmt/format.h>

#include <cstring>

#include "model/load/part.h"

namespace lathe {
namespace {

// dst[2c] is column c of src [rows, cols], and dst[2c + 1] is column cols / 2 + c.
void transpose_halves(const std::byte* src, std::int64_t rows, std::int64_t cols, std::int64_t size,
                      std::byte* dst) {
  const std::int64_t row = rows * size;  // bytes
  std::vector<std::byte> turned(static_cast<std::size_t>(cols * row));
  transpose(src, rows, cols, size, turned.data());
  for (std::int64_t c = 0; c < cols; ++c) {
    const std::int64_t to = c < cols / 2 ? 2 * c : 2 * (c - cols / 2) + 1;
    std::memcpy(dst + to * row, turned.data() + c * row, static_cast<std::size_t>(row));
  }
}

// This rank's part of one matrix of a stack, as stored: [in, out]. With `halves` (gates, then ups),
// the part's columns of the first half come first, then its columns of the second.
std::vector<std::byte> stored_part(const TensorSpec& spec, const std::byte* from,
                                   std::int64_t size) {
  const Range &rows = spec.part.rows, &cols = spec.part.cols;
  const std::int64_t stride = spec.shape[2], halves = spec.halves ? 2 : 1;
  const std::int64_t width = rows.count / halves * size;
  std::vector<std::byte> out(static_cast<std::size_t>(cols.count * rows.count * size));
  for (std::int64_t i = 0; i < cols.count * halves; ++i) {
    const std::int64_t in = cols.first + i / halves;
    const std::int64_t first = i % halves * (stride / 2) + rows.first / halves;
    std::memcpy(out.data() + i * width, from + (in * stride + first) * size,
                static_cast<std::size_t>(width));
  }
  return out;
}

}  // namespace

// Transposes a stack of matrices stored as [in, out].
void TensorLoader::turn(const TensorSpec& spec, const CheckpointTensor& tensor) {
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  if (!plain(dtype)) return wrong_dtype(spec, tensor, "F32, BF16 or F16");
  if (headers_only()) return;
  WeightStack& stack = *spec.stack;
  stack.dtype = *dtype;
  const std::int64_t size = bits_of(*dtype) / 8;
  const std::int64_t whole = spec.shape[1] * spec.shape[2] * size;
  const std::int64_t bytes = stack.rows * stack.cols * size;
  std::byte* to = weights_.take(stack.count() * bytes);
  for_each(threads_, stack.count(), [&](std::int64_t i) {
    const std::byte* from = tensor.bytes.data() + (spec.part.matrices.first + i) * whole;
    std::vector<std::byte> part;
    if (bytes != whole) {
      part = stored_part(spec, from, size);
      from = part.data();
    }
    if (spec.halves) {
      transpose_halves(from, stack.cols, stack.rows, size, to + i * bytes);
    } else {
      transpose(from, stack.cols, stack.rows, size, to + i * bytes);
    }
    stack.set(i, {to + i * bytes, *dtype, stack.rows, stack.cols});
  });
}

// Binds an MXFP4 stack in place: its bytes need no alignment.
void TensorLoader::bind_mxfp4(const TensorSpec& spec, Names& read) {
  WeightStack& stack = *spec.stack;
  const std::int64_t count = spec.shape[0], cols = spec.shape[1], rows = spec.shape[2];
  const std::int64_t blocks = cols / kMxBlock;
  const auto bytes_of_part = [&](const char* part, std::vector<std::int64_t> shape) {
    const std::string name = spec.name + part;
    const CheckpointTensor* tensor = checkpoint_.find(name);
    if (tensor == nullptr) {
      complaints_.missing(name);
      return static_cast<const std::byte*>(nullptr);
    }
    read.insert(tensor->name);
    if (tensor->dtype != SafetensorsDType::U8 || tensor->shape != shape) {
      complaints_.misshapen(fmt::format("{} {} {} (wanted U8 {})", name, lathe::name(tensor->dtype),
                                        shape_text(tensor->shape), shape_text(shape)));
      return static_cast<const std::byte*>(nullptr);
    }
    return tensor->bytes.data();
  };
  const std::byte* codes = bytes_of_part("_blocks", {count, rows, blocks, kMxBlock / 2});
  const std::byte* scales = bytes_of_part("_scales", {count, rows, blocks});
  if (codes == nullptr || scales == nullptr) return;
  stack.dtype = DType::e2m1;
  for (std::int64_t i = 0; i < stack.count(); ++i) {
    const std::int64_t at = spec.part.matrices.first + i;
    const WeightView whole{codes + at * rows * cols / 2,
                           DType::e2m1,
                           rows,
                           cols,
                           nullptr,
                           reinterpret_cast<const ue8m0*>(scales + at * rows * blocks)};
    if (headers_only()) {
      stack.set(i, whole);
      continue;
    }
    stack.set(i, matrix_part(whole, spec.part, threads_, weights_, source_));
    if (spec.part.cols.count == cols) weights_.bytes += stack.at(i).bytes();
  }
  packed_.push_back({{}, {}, checkpoint_.find(spec.name + "_scales")});
}

// Binds one expert's matrix, which is in a tensor with the matrices of all experts.
void TensorLoader::bind_of_stack(const TensorSpec& spec, const CheckpointTensor& tensor) {
  const TensorSpec::OfStack& of = *spec.of_stack;
  const std::vector shape = {of.matrices, of.rows, spec.shape[1]};
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  if (!plain(dtype) || tensor.shape != shape) {
    if (of.matrix > 0 || of.first > 0) return;  // once for the tensor
    complaints_.misshapen(fmt::format("{} {} {} (wanted F32, BF16 or F16 {})", of.name,
                                      name(tensor.dtype), shape_text(tensor.shape),
                                      shape_text(shape)));
    return;
  }
  const std::int64_t rows = spec.shape[0], row = bytes_of(*dtype, spec.shape[1]);
  const auto bytes =
      tensor.bytes.subspan(static_cast<std::size_t>((of.matrix * of.rows + of.first) * row),
                           static_cast<std::size_t>(rows * row));
  const WeightView w{in_place(bytes, *dtype), *dtype, rows, spec.shape[1], nullptr};
  check_like(spec, w);
  set_part(spec, w);
}

}  // namespace lathe
