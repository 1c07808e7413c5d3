#include "model/load/tensor_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/float_formats.h"
#include "model/load/bind_format.h"
#include "model/weights/weight_formats.h"

namespace lathe {
namespace {

std::string format_text(const WeightView& w) {
  std::string out(name(w.dtype));
  if (w.scale_rows) out += " with scales of rows";
  if (w.groups.size != 0) {
    out += fmt::format(" in groups of {}{}{}", w.groups.size,
                       w.groups.zeros == nullptr ? "" : " with zeros",
                       w.columns == nullptr ? "" : " and an order");
  }
  return out;
}

}  // namespace

// Bytes of a row of e2m1 codes, two in a byte, if the tensor has such codes, under any dtype that
// files use for them.
std::optional<std::int64_t> TensorLoader::pairs_of_codes(const TensorSpec& spec,
                                                         const CheckpointTensor& tensor) {
  const bool codes = tensor.dtype == SafetensorsDType::I8 || tensor.dtype == SafetensorsDType::U8 ||
                     tensor.dtype == SafetensorsDType::F4;
  if (!spec.may_be_mx || !codes) return std::nullopt;
  return spec.shape[1] / (tensor.dtype == SafetensorsDType::F4 ? 1 : 2);
}

// Name of the scales that a weight of DeepSeek V4 lacks, as this checkpoint names them.
std::string TensorLoader::scale_beside(const CheckpointTensor& weight) const {
  constexpr std::string_view kTransformers = ".weight_scale_inv";
  const bool renames = std::ranges::any_of(checkpoint_.tensors(), [&](const CheckpointTensor& t) {
    return t.name.ends_with(kTransformers);
  });
  return weight.name.substr(0, weight.name.rfind('.')) +
         std::string(renames ? kTransformers : ".scale");
}

// Binds a matrix of e2m1 codes in place; returns the name of its scales, or an empty one.
std::string_view TensorLoader::bind_mx(const TensorSpec& spec, const CheckpointTensor& tensor,
                                       std::int64_t cols) {
  if (tensor.shape != std::vector{spec.shape[0], cols} || spec.shape[1] % kMxBlock != 0) {
    complaints_.misshapen(fmt::format("{} {} {} (wanted {}, of blocks of {})", spec.name,
                                      name(tensor.dtype), shape_text(tensor.shape),
                                      shape_text(std::vector{spec.shape[0], cols}), kMxBlock));
    return {};
  }
  check_like(spec, {.dtype = DType::e2m1});
  const std::string scale = scale_name(spec);
  const CheckpointTensor* scales = find(scale);
  if (scales == nullptr) {
    complaints_.missing(scale_beside(tensor), true);
    return {};
  }
  const std::vector shape = {spec.shape[0], spec.shape[1] / kMxBlock};
  if (!exponents(*scales) || scales->shape != shape) {
    complaints_.misshapen(fmt::format("{} {} {} (wanted F8_E8M0 or U8 {})", scales->name,
                                      name(scales->dtype), shape_text(scales->shape),
                                      shape_text(shape)));
    return scales->name;
  }
  weights_.bytes += std::ssize(tensor.bytes) + std::ssize(scales->bytes);
  set_part(spec, {tensor.bytes.data(), DType::e2m1, spec.shape[0], spec.shape[1], nullptr,
                  reinterpret_cast<const ue8m0*>(scales->bytes.data())});
  packed_.push_back({{}, {}, scales});
  return scales->name;
}

// Whether the scales are powers of two stored as one exponent byte each.
bool TensorLoader::exponents(const CheckpointTensor& tensor) {
  return tensor.dtype == SafetensorsDType::F8_E8M0 || tensor.dtype == SafetensorsDType::U8;
}

std::span<const float> TensorLoader::factors(const CheckpointTensor& tensor) {
  if (!exponents(tensor)) return widened(tensor);
  const std::span out(weights_.take_floats(std::ssize(tensor.bytes)), tensor.bytes.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = to_f32(ue8m0{std::to_integer<std::uint8_t>(tensor.bytes[i])});
  }
  return out;
}

// DeepSeek V4's own formats have scales in scale_name(); NVIDIA's has experts in NVFP4.
bool TensorLoader::may_be_packed(const TensorSpec& spec) const {
  if (!spec.linear && !spec.packable) return false;
  if (!config_.is_compressed()) return true;
  const std::string module = spec.name.substr(0, spec.name.rfind('.'));
  return spec.may_be_mx && find(module + ".weight_scale") != nullptr;
}

// Binds a matrix in one of weight_formats(); false: it is not quantised.
bool TensorLoader::bind_packed(const TensorSpec& spec, Names& read) {
  const std::string module = spec.name.substr(0, spec.name.rfind('.'));
  // Of a matrix that other ranks have, only the headers matter.
  const bool absent = spec.part.empty();
  const FormatOptions options{.gptq_v2 = config_.gptq_v2,
                              .no_zeros = !config_.int4_zeros,
                              .headers_only = headers_only() || absent,
                              .contents = reads_values() && !absent,
                              .has_zeros = needs_zeros_,
                              .has_order = config_.int4_order,
                              .rows_ordered = config_.int4_all_ordered,
                              .group = config_.int4_group,
                              .is_used = [&](const WeightFormat& f) { return is_used(f); }};
  const std::int64_t bytes = weights_.bytes;
  const auto find_tensor = [&](const std::string& name) { return find(name); };
  BoundFormat bound;
  if (!bind_format(find_tensor, module, spec.shape[0], spec.shape[1], options, threads_, weights_,
                   bound)) {
    return false;
  }
  read.insert(bound.read.begin(), bound.read.end());
  if (!bound.missing.empty() || !bound.misshapen.empty()) {
    if (!bound.missing.empty()) complaints_.missing(bound.missing, true);
    if (!bound.misshapen.empty()) complaints_.unreadable(std::move(bound.misshapen));
    for (const CheckpointTensor* t : format_tensors(module)) read.insert(t->name);
    return true;
  }
  if (absent && !headers_only()) {
    weights_.bytes = bytes;
    if (spec.place >= 0) set_nothing(spec);
    return true;
  }
  WeightView& w = bound.weight;
  check_like(spec, w);
  const WeightFormat& format = *bound.format;
  const bool whole = w.dtype == DType::e4m3 && !w.scale_rows;
  const WeightView codes = w;
  if (spec.split && !whole && !headers_only()) w = widened(w);
  const WeightView part = set_part(spec, w);
  const bool own = part.dtype == DType::e4m3 && part.data != nullptr;
  packed_.push_back({own ? part : codes, module + std::string(format.codes), bound.scales,
                     own ? spec.part : TensorPart{}, bound.factor, format.divides,
                     codes.dtype == DType::u4 || bound.scales->dtype == SafetensorsDType::F8_E4M3});
  return true;
}

// Whether some matrix of the checkpoint is in the format, by names and dtypes.
bool TensorLoader::is_used(const WeightFormat& format) {
  if (used_.empty()) {
    const auto find_tensor = [&](const std::string& name) { return find(name); };
    for (const WeightFormat& f : weight_formats()) {
      used_.push_back(std::ranges::any_of(checkpoint_.tensors(), [&](const CheckpointTensor& t) {
        const std::string name = published_name(t.name);
        if (!name.ends_with(f.scales)) return false;
        return is_in_format(find_tensor, name.substr(0, name.size() - f.scales.size()), f);
      }));
    }
  }
  return used_[static_cast<std::size_t>(&format - weight_formats().data())];
}

// Whether a tensor has a name that only formats of weights use.
bool TensorLoader::is_of_format(std::string_view name) {
  return std::ranges::any_of(weight_formats(), [&](const WeightFormat& f) {
    return std::ranges::any_of(
        std::array{f.codes, f.scales, f.zeros, f.order, f.factor},
        [&](std::string_view s) { return !s.empty() && s != ".weight" && name.ends_with(s); });
  });
}

// Tensors of the module that some format has.
std::vector<const CheckpointTensor*> TensorLoader::format_tensors(const std::string& module) const {
  std::vector<const CheckpointTensor*> out;
  const auto add = [&](std::string_view suffix) {
    const CheckpointTensor* t = suffix.empty() ? nullptr : find(module + std::string(suffix));
    if (t != nullptr) out.push_back(t);
  };
  for (const WeightFormat& f : weight_formats()) {
    for (const std::string_view s : {f.codes, f.scales, f.zeros, f.order, f.factor}) add(s);
  }
  for (const std::string_view s : unread_suffixes()) add(s);
  return out;
}

// Expert GEMMs are prepared for one format of gates and ups and one of downs. w is the whole matrix
// as stored: a rank's parts of alike matrices are alike, but may be widened to f32.
void TensorLoader::check_like(const TensorSpec& spec, const WeightView& w) {
  if (spec.like == nullptr) return;
  const auto [at, is_first] = first_like_.try_emplace(spec.like, w);
  if (is_first) return;
  const WeightView& first = at->second;
  const auto same = [](const auto* a, const auto* b) { return (a == nullptr) == (b == nullptr); };
  const bool alike = first.dtype == w.dtype && first.scale_rows == w.scale_rows &&
                     first.groups.size == w.groups.size && first.groups.dtype == w.groups.dtype &&
                     same(first.groups.zeros, w.groups.zeros) && same(first.columns, w.columns);
  if (alike) return;
  const std::string_view stem(spec.name.data(), spec.name.rfind('.'));
  complaints_.misshapen(
      fmt::format("{} {} (wanted {}, as experts.0 has)", stem, format_text(w), format_text(first)));
}

// A copy in wide_, with the columns in x's order.
WeightView TensorLoader::widened(const WeightView& w) {
  const WeightView f32 = in_f32(w);
  if (wide_ == DType::f32) return f32;
  auto* to = reinterpret_cast<bf16*>(weights_.take(2 * w.rows * w.cols));
  const auto* from = reinterpret_cast<const float*>(f32.data);
  for_each(threads_, w.rows, [&](std::int64_t r) {
    for (std::int64_t i = r * w.cols; i < (r + 1) * w.cols; ++i) to[i] = to_bf16(from[i]);
  });
  return {reinterpret_cast<const std::byte*>(to), DType::bf16, w.rows, w.cols};
}

}  // namespace lathe
