// Scales of per-tensor caches (mla_fp8, gqa_fp8): one for a layer's keys, and one for its values
// where they are stored apart. A value x is stored as e4m3(x / scale).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attn/model_plan.h"
#include "base/result.h"
#include "layout/codec.h"
#include "model/config.h"

namespace lathe {

/// Whether some layer group's main layout has a scale of the whole pool.
bool has_tensor_scales(const ModelPlan& plan);

/// The least power of two that stores magnitudes up to twice `largest`, so that text that was not
/// seen has room. A power of two adds no rounding where one format becomes another. 1 for 0.
float scale_for(float largest);

/// What read_kv_scales() reads. scales: [layers].
std::string kv_scales_text(const ModelConfig& config, std::span<const TensorScales> scales);

/// Reads {"architecture": NAME, "key": [SCALE, ...], "value": [SCALE, ...]}: a scale per layer;
/// "value" exactly where values are stored apart from keys. Errors, naming the file: JSON of
/// another form, or of another model; a number of scales that is not that of the layers; one that
/// is not in [2^-126, 2^126].
Result<std::vector<TensorScales>> read_kv_scales(const std::string& path,
                                                 const ModelConfig& config);

/// An error of `--kv-scales` where no layer of the plan has such a cache.
Result<void> check_takes_scales(const ModelPlan& plan);

/// "keys 0.5 to 4, values 0.25"
std::string kv_scales_range(const ModelConfig& config, std::span<const TensorScales> scales);

}  // namespace lathe
