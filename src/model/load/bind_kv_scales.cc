#include "model/load/tensor_loader.h"

#include <fmt/format.h>

namespace lathe {
namespace {

std::string kv_scale_name(std::int32_t layer, std::string_view of, std::string_view part) {
  return fmt::format("model.layers.{}.self_attn.{}{}_scale", layer, of, part);
}

}  // namespace

// Reads scales of per-tensor caches, under quantisers' names. A latent is key and value at once;
// its key's scale counts.
void TensorLoader::bind_kv_scales(Names& read) {
  std::vector<TensorScales> scales(static_cast<std::size_t>(config_.layers));
  bool some = false;
  std::vector<std::string> absent;
  for (std::int32_t l = 0; l < config_.layers; ++l) {
    if (config_.is_delta(l) || config_.is_reader(l)) continue;
    TensorScales& s = scales[static_cast<std::size_t>(l)];
    const bool key = bind_kv_scale(l, "k", s.key, read);
    const bool value = bind_kv_scale(l, "v", s.value, read);
    some |= key || value;
    if (!key) absent.push_back(kv_scale_name(l, "", "k"));
    // Values that are keys are normed, so a scale of 1 does if quantisers write none.
    const bool projected = !config_.groups[config_.group_of(l)].values_are_keys;
    if (!value && !config_.is_mla() && projected) absent.push_back(kv_scale_name(l, "", "v"));
  }
  if (!some) return;
  for (const std::string& name : absent) complaints_.missing(name);
  weights_.kv_scales = std::move(scales);
}

bool TensorLoader::bind_kv_scale(std::int32_t layer, std::string_view part, float& to,
                                 Names& read) {
  for (const std::string& of :
       {std::string(), std::string("attn."), fmt::format("{}_proj.", part)}) {
    const CheckpointTensor* tensor = checkpoint_.find(kv_scale_name(layer, of, part));
    if (tensor == nullptr) continue;
    read.insert(tensor->name);
    const bool one = tensor->shape.empty() || tensor->shape == std::vector<std::int64_t>{1};
    if (!one || !plain(dtype_of(tensor->dtype))) {
      complaints_.misshapen(fmt::format("{} {} {} (wanted one F32)", tensor->name,
                                        name(tensor->dtype), shape_text(tensor->shape)));
      return true;
    }
    if (!reads_values()) return true;
    to = widened(*tensor)[0];
    if (!(to >= 0x1p-126f && to <= 0x1p126f)) {
      complaints_.misshapen(
          fmt::format("{} = {} (wanted a scale from 2^-126 to 2^126)", tensor->name, to));
    }
    return true;
  }
  return false;
}

}  // namespace lathe
