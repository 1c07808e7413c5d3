// Scales of per-tensor caches (mla_fp8, gqa_fp8): one for a layer's keys, and one for its values if
// they are stored separately. A value x is stored as e4m3(x / scale).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "layout/codec/codec.h"
#include "model/config/config.h"
#include "plan/model_plan.h"

namespace lathe {

/// Whether some layer group's main layout has one scale per pool.
bool has_tensor_scales(const ModelPlan& plan);

/// The least power of two that can store magnitudes up to twice `largest`, a margin for unseen
/// text. Powers of two add no rounding in conversions between formats. 1 for 0.
float scale_for(float largest);

/// The file contents for read_kv_scales(). scales: [layers].
std::string kv_scales_text(const ModelConfig& config, std::span<const TensorScales> scales);

/// Reads {"architecture": NAME, "key": [SCALE, ...], "value": [SCALE, ...]} with a scale per layer.
/// "value" is there if and only if values are stored separately. Errors, naming the file: malformed
/// JSON; a file for another model; another number of scales than layers; a scale outside
/// [2^-126, 2^126].
Result<std::vector<TensorScales>> read_kv_scales(const std::string& path,
                                                 const ModelConfig& config);

/// Errors, naming `--kv-scales`: no layer of the plan has such a cache.
Result<void> check_takes_scales(const ModelPlan& plan);

/// "keys 0.5 to 4, values 0.25"
std::string kv_scales_range(const ModelConfig& config, std::span<const TensorScales> scales);

}  // namespace lathe
