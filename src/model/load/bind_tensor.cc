#include "model/load/tensor_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/float_formats.h"
#include "model/load/part.h"

namespace lathe {

void TensorLoader::wrong_dtype(const TensorSpec& spec, const CheckpointTensor& tensor,
                               std::string_view wanted) {
  complaints_.unreadable(fmt::format("{} {} (wanted {})", spec.name, name(tensor.dtype), wanted));
}

std::span<float> TensorLoader::widened(const CheckpointTensor& tensor) {
  const DType dtype = *dtype_of(tensor.dtype);
  const auto size = static_cast<std::size_t>(bits_of(dtype) / 8);
  const std::size_t count = tensor.bytes.size() / size;
  const std::span out(weights_.take_floats(static_cast<std::int64_t>(count)), count);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::byte* at = tensor.bytes.data() + i * size;  // any alignment
    if (dtype == DType::f32) {
      std::memcpy(&out[i], at, size);
      continue;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, at, size);
    out[i] = dtype == DType::bf16 ? to_f32(bf16{bits}) : to_f32(f16{bits});
  }
  return out;
}

void TensorLoader::widen(const TensorSpec& spec, const CheckpointTensor& tensor) {
  if (!plain(dtype_of(tensor.dtype))) return wrong_dtype(spec, tensor, "F32, BF16 or F16");
  if (headers_only()) return;
  const std::span<float> values = widened(tensor);
  for (float& v : values) v = (v + spec.offset) * spec.factor;
  *spec.vector = values;
  if (is_whole(spec)) return;
  const std::vector<float> part = vector_part(spec, values);
  float* to = weights_.take_floats(std::ssize(part));
  std::ranges::copy(part, to);
  *spec.vector = {to, part.size()};
}

// A matrix without rows or columns, in the dtype that every GEMM computes without bytes.
WeightView TensorLoader::set_nothing(const TensorSpec& spec) {
  const WeightView none{nullptr, DType::f32, spec.part.rows.count, spec.part.cols.count};
  spec.set(none);
  return none;
}

// Cuts this rank's part from a whole matrix, sets and returns it. The caller has added the whole
// matrix's bytes to weights_.bytes.
WeightView TensorLoader::set_part(const TensorSpec& spec, const WeightView& whole) {
  if (headers_only() || is_whole(spec)) {
    if (headers_only()) {  // a fused tensor's bytes are counted once
      weights_.bytes -= whole.bytes() / spec.shape[0] * (spec.shape[0] - spec.part.rows.count);
    }
    spec.set(whole);
    return whole;
  }
  weights_.bytes -= whole.bytes();
  if (spec.place < 0) return {};
  if (spec.part.empty()) return set_nothing(spec);
  const bool cut =
      spec.joined && whole.dtype == DType::e4m3 && spec.stack->rows % kWeightBlock != 0;
  const WeightView part =
      matrix_part(whole, spec.part, threads_, weights_, cut ? nullptr : source_);
  const bool viewed = part.data >= whole.data && part.data < whole.data + whole.bytes();
  if (viewed) weights_.bytes += part.bytes();
  spec.set(cut && part.dtype == DType::e4m3 ? in_f32(part) : part);
  return part;
}

void TensorLoader::read_ids(const TensorSpec& spec, const CheckpointTensor& tensor) {
  const bool wide = tensor.dtype == SafetensorsDType::I64;
  if (!wide && tensor.dtype != SafetensorsDType::I32) {
    return wrong_dtype(spec, tensor, "I32 or I64");
  }
  if (!reads_values()) return;
  const std::int64_t n = spec.elements();
  auto* ids = reinterpret_cast<std::int32_t*>(weights_.take(4 * n));
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t id = 0;  // safetensors files are little-endian
    std::memcpy(&id, tensor.bytes.data() + i * (wide ? 8 : 4), wide ? 8 : 4);
    if (!wide) id = static_cast<std::int32_t>(id);
    if (id < 0 || id >= spec.id_end) {
      complaints_.misshapen(fmt::format("{}[{}, {}] = {} (wanted 0 to {})", tensor.name,
                                        i / spec.shape[1], i % spec.shape[1], id, spec.id_end - 1));
      return;
    }
    ids[i] = static_cast<std::int32_t>(id);
  }
  *spec.ids = {ids, static_cast<std::size_t>(n)};
}

// An f32 copy, which can be cut at any row.
WeightView TensorLoader::in_f32(const WeightView& w) {
  return widened_part(w, {{0, 1}, {0, w.rows}, {0, w.cols}}, threads_, weights_);
}

// The mapping itself, or a copy if its elements are not aligned.
const std::byte* TensorLoader::in_place(std::span<const std::byte> stored, DType dtype) {
  const auto bytes = static_cast<std::int64_t>(stored.size());
  const auto address = reinterpret_cast<std::uintptr_t>(stored.data());
  if (headers_only() || address % static_cast<std::uintptr_t>(bits_of(dtype) / 8) == 0) {
    weights_.bytes += bytes;
    return stored.data();
  }
  std::byte* copy = weights_.take(bytes);
  std::memcpy(copy, stored.data(), stored.size());
  return copy;
}

// Binds a tensor; returns the tensor of its scales, if it has one.
const CheckpointTensor* TensorLoader::bind(const TensorSpec& spec, const CheckpointTensor& tensor) {
  const std::optional<DType> dtype = dtype_of(tensor.dtype);
  const bool fp8 = dtype == DType::e4m3 && spec.linear && config_.is_compressed();
  if (!plain(dtype) && !fp8) {
    const bool v4 = config_.is_compressed(), codes = v4 && spec.linear;
    wrong_dtype(spec, tensor,
                fmt::format("{}{}F32, BF16 or F16", codes ? "F8_E4M3, " : "",
                            spec.may_be_mx ? "I8, U8 or F4 of pairs, " : ""));
    return v4 ? find(scale_name(spec)) : nullptr;
  }
  WeightView w{in_place(tensor.bytes, *dtype), *dtype, spec.shape[0], spec.shape[1], nullptr};
  check_like(spec, w);
  if (!fp8) {
    set_part(spec, w);
    return nullptr;
  }
  const std::string scale = scale_name(spec);
  const CheckpointTensor* scales = find(scale);
  if (scales == nullptr) {
    complaints_.missing(scale_beside(tensor), true);
    return nullptr;
  }
  const std::vector<std::int64_t> shape = {weight_blocks(spec.shape[0]),
                                           weight_blocks(spec.shape[1])};
  if (scales->shape != shape || (!plain(dtype_of(scales->dtype)) && !exponents(*scales))) {
    complaints_.misshapen(fmt::format("{} {} {} (wanted F8_E8M0, U8 or F32 {})", scales->name,
                                      name(scales->dtype), shape_text(scales->shape),
                                      shape_text(shape)));
    return scales;
  }
  if (headers_only()) {
    packed_.push_back({{}, {}, scales});
    spec.set(w);
    return scales;
  }
  w.scales = factors(*scales).data();
  if (is_whole(spec)) {
    packed_.push_back({w, tensor.name, scales});
    if (spec.joined && spec.stack->rows % kWeightBlock != 0) w = in_f32(w);
    spec.set(w);
    return scales;
  }
  const WeightView part = set_part(spec, w);
  const bool own = part.dtype == DType::e4m3;
  if (!spec.part.empty()) {
    packed_.push_back({own ? part : w, tensor.name, scales, own ? spec.part : TensorPart{}});
  }
  return scales;
}

}  // namespace lathe
