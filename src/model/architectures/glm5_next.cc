// GLM 5.3 Flash: layers of Kimi delta attention with a bounded decay for each one of sparse latent
// attention without positions, where several tokens share an index key; DeepSeek V4's residual
// streams, with a head that reads their mean.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/hyper.h"
#include "model/config/config_delta.h"
#include "model/config/config_gqa.h"
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

void parse_latents(ConfigReader& json, ModelConfig& config) {
  parse_mla(json, config, {.groups = 1, .top_groups = 1, .draft_layers = 0, .no_positions = true});
  parse_indexer(json, config, RopePairing::interleaved);
  config.mla.norm_eps = config.norm_eps;
  LayerGroupConfig& group = config.all_layers();
  group.rope = no_rope(group.rope);
  AttentionProblem& p = group.problem;
  p.index_pool = json.integer("index_kpool", 16, 1, 1024);
  if (p.top_k % p.index_pool != 0) {
    json.refuse("index_topk", fmt::format("a multiple of index_kpool ({})", p.index_pool),
                fmt::format("{}", p.top_k), ErrorCode::malformed);
  }
  if (!json.flag("index_kpool_always_select_tail", true)) {
    json.refuse("index_kpool_always_select_tail", "true", "false");
  }
}

// A layer that shares a selection would need one from before layers of a delta rule.
void parse_indexed_layers(ConfigReader& json, ModelConfig& config) {
  parse_indexer_types(json, config);
  for (const std::int32_t layer : config.groups.front().layers) {
    if (config.mla.own_indexer[static_cast<std::size_t>(layer)] != 0) continue;
    json.refuse(fmt::format("indexer_types[{}]", layer), "full in layers of indexed_attention",
                "shared");
  }
  for (const std::int32_t layer : config.delta.layers) {
    config.mla.own_indexer[static_cast<std::size_t>(layer)] = 0;
  }
}

}  // namespace

void parse_glm5_next(ConfigReader& json, ModelConfig& config) {
  parse_latents(json, config);
  parse_glm_delta(json, config);
  parse_indexed_layers(json, config);
  config.hyper = {.streams = json.integer("hc_mult", 4, 1, kMaxStreams),
                  .iterations = json.integer("hc_sinkhorn_iters", 20, 1, 1000),
                  .eps = static_cast<float>(json.number("hc_eps", kEpsRange, 1e-6)),
                  .attention = "hc_attn_",
                  .ffn = "hc_ffn_"};
  if (const double limit = json.number("swiglu_limit", kOptionalFactorRange, 10); limit > 0) {
    config.activation = {.kind = ActivationKind::clamped_silu, .limit = static_cast<float>(limit)};
  }
}

}  // namespace lathe
