#include "model/load/format_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "kernels/linear.h"
#include "model/weights/weight_formats.h"

namespace lathe {
namespace {

using enum WeightPacking;

// A matrix's tensors in one row of the table.
struct Parts {
  const WeightFormat& format;
  const CheckpointTensor &codes, &scales;
  bool zeros, order;
};

std::int64_t elements(const CheckpointTensor& t) {
  std::int64_t n = 1;
  for (const std::int64_t side : t.shape) n *= side;
  return n;
}

bool dtypes_fit(const WeightFormat& f, const CheckpointTensor& codes,
                const CheckpointTensor& scales) {
  using enum SafetensorsDType;
  if (codes.shape.size() != 2) return false;
  switch (f.packing) {
    case fp8:
      return codes.dtype == F8_E4M3;
    case u4_rows:
      return codes.dtype == I32;
    case u4_gptq:  // codes [in / 8, out], scales [in / group, out]
      return codes.dtype == I32 && scales.shape.size() == 2 && codes.shape[1] == scales.shape[1];
    case u4_awq:  // codes [in, out / 8]
      return codes.dtype == I32 && scales.shape.size() == 2;
    case e2m1_nv:
      return (codes.dtype == U8 || codes.dtype == I8) && scales.dtype == F8_E4M3;
    case e2m1_mx:
      return (codes.dtype == U8 || codes.dtype == I8) && scales.dtype != F8_E4M3;
  }
  return false;
}

std::string fp8_text(const Parts& p) {
  const std::int64_t scales = elements(p.scales);
  // A matrix within one block has a scale [1, 1].
  const bool one_block = p.scales.shape.size() == 2 && p.codes.shape[0] <= kWeightBlock &&
                         p.codes.shape[1] <= kWeightBlock;
  if (scales == 1 && !one_block) return "fp8 per tensor";
  const bool by_row = scales == p.codes.shape[0] && p.scales.shape.size() <= 2;
  return by_row ? "fp8 per channel" : "fp8 in blocks of 128 x 128";
}

std::string u4_text(const Parts& m) {
  const bool rows = m.format.packing == u4_rows;
  const std::int64_t in = rows                          ? m.codes.shape[1] * 8
                          : m.format.packing == u4_gptq ? m.codes.shape[0] * 8
                                                        : m.codes.shape[0];
  const std::int64_t groups = m.scales.shape.size() == 2 ? m.scales.shape[rows ? 1 : 0] : 0;
  return fmt::format("{}, groups of {}{}{}", m.format.name, groups > 0 ? in / groups : 0,
                     m.zeros ? " with zero points" : "", m.order ? ", in act order" : "");
}

std::string text_of(const Parts& p) {
  switch (p.format.packing) {
    case fp8:
      return fp8_text(p);
    case u4_rows:
    case u4_gptq:
    case u4_awq:
      return u4_text(p);
    case e2m1_nv:
    case e2m1_mx:
      return std::string(p.format.name);
  }
  return {};
}

std::optional<Parts> parts_of(const Checkpoint& checkpoint, const CheckpointTensor& codes) {
  for (const WeightFormat& f : weight_formats()) {
    if (!codes.name.ends_with(f.codes)) continue;
    const std::string module = codes.name.substr(0, codes.name.size() - f.codes.size());
    const auto find = [&](std::string_view suffix) {
      return suffix.empty() ? nullptr : checkpoint.find(module + std::string(suffix));
    };
    const CheckpointTensor* scales = find(f.scales);
    if (scales == nullptr || !dtypes_fit(f, codes, *scales)) continue;
    if (!f.factor.empty() && find(f.factor) == nullptr) continue;
    const bool zeros = find(f.zeros) != nullptr && f.packing != u4_gptq;
    return Parts{f, codes, *scales, zeros, f.packing == u4_rows && find(f.order) != nullptr};
  }
  return std::nullopt;
}

}  // namespace

std::map<std::string, std::int64_t> count_formats(const Checkpoint& checkpoint) {
  std::map<std::string, std::int64_t> out;
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    if (const auto parts = parts_of(checkpoint, t)) ++out[text_of(*parts)];
  }
  return out;
}

}  // namespace lathe
