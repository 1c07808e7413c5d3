#include "model/load/formats_of_tensors.h"

#include <algorithm>
#include <string>

#include "kernels/linear.h"
#include "model/load/bind_format.h"
#include "model/weights/weight_formats.h"

namespace lathe {
namespace {

using enum SafetensorsDType;

bool is_exponents(const CheckpointTensor& t) { return t.dtype == F8_E8M0 || t.dtype == U8; }

// DeepSeek V4's own formats: block_fp8 lets the loader look for scales of blocks.
void add_v4_formats(const Checkpoint& checkpoint, ModelConfig& config) {
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    const bool weight = t.name.ends_with(".weight");
    if (weight && t.dtype == F8_E4M3 && !config.block_fp8) {
      config.block_fp8 = true;
      config.quantization = Quantization::fp8_blocks;
    }
    const bool scale = t.name.ends_with(".scale") || t.name.ends_with(".weight_scale_inv");
    config.fp8_pow2 |= scale && is_exponents(t);
    if (t.name.find(".experts.") == std::string::npos) continue;
    config.mxfp4 |= weight && (t.dtype == I8 || t.dtype == U8 || t.dtype == F4);
    config.nvfp4_experts |= t.name.ends_with(".weight_scale_2");
  }
}

// Sets what the matrix's tensors say; the last of Quantization's formats counts for all.
void add_format(const WeightFormat& format, const CheckpointTensor& codes,
                const CheckpointTensor& scales, bool zeros, ModelConfig& config) {
  using enum WeightPacking;
  Quantization found = Quantization::none;
  switch (format.packing) {
    case fp8: {
      const std::vector<std::int64_t> blocks = {weight_blocks(codes.shape[0]),
                                                weight_blocks(codes.shape.back())};
      const bool block = codes.shape.size() == 2 && scales.shape == blocks;
      config.block_fp8 |= block;
      config.fp8_pow2 |= block && is_exponents(scales);
      found = block ? Quantization::fp8_blocks : Quantization::fp8_rows;
      break;
    }
    case u4_rows:
    case u4_gptq:
    case u4_awq: {
      found = Quantization::int4;
      if (codes.shape.size() != 2 || scales.shape.size() != 2) break;
      const bool rows = format.packing == u4_rows;
      const std::int64_t in = codes.shape[rows ? 1 : 0] * (format.packing == u4_awq ? 1 : 8);
      const std::int64_t groups = scales.shape[rows ? 1 : 0];
      const std::int64_t group = groups > 0 && in % groups == 0 ? in / groups : 0;
      if (group != 32 && group != 64 && group != 128) break;
      // Zero points are expected where all have them.
      config.int4_zeros = zeros && (config.int4_group == 0 || config.int4_zeros);
      config.int4_group = std::max(config.int4_group, static_cast<std::int32_t>(group));
      break;
    }
    case e2m1_nv:
      found = Quantization::nvfp4;
      break;
    case e2m1_mx:
      found = Quantization::mxfp4;
      break;
  }
  config.quantization = std::max(config.quantization, found);
}

}  // namespace

void add_formats(const Checkpoint& checkpoint, ModelConfig& config) {
  if (config.is_compressed()) return add_v4_formats(checkpoint, config);
  if (config.quantization != Quantization::none || config.mxfp4) return;
  const auto find = [&](const std::string& name) { return checkpoint.find(name); };
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    for (const WeightFormat& format : weight_formats()) {
      if (!t.name.ends_with(format.scales)) continue;
      const std::string module = t.name.substr(0, t.name.size() - format.scales.size());
      if (!is_in_format(find, module, format)) continue;
      const CheckpointTensor* codes = find(module + std::string(format.codes));
      if (codes->shape.empty()) continue;
      // GPTQ's say nothing: symmetric ones have them, too.
      const bool zeros = format.packing != WeightPacking::u4_gptq && !format.zeros.empty() &&
                         find(module + std::string(format.zeros)) != nullptr;
      add_format(format, *codes, t, zeros, config);
    }
  }
}

}  // namespace lathe
