// Hy4: DeepSeek V3.2's sparse latent attention with RoPE that pairs halves, sinks and a gate of its
// output; several residual streams, which no part mixes; routed experts alone clamp their SwiGLU.
#include <array>

#include "kernels/hyper.h"
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

constexpr std::array kHyNames = {Renamed{".linear_gate.", ".gate_proj."}};

void parse_streams(ConfigReader& json, ModelConfig& config) {
  HyperConfig& hyper = config.hyper;
  hyper.streams = json.integer("hc_mult", 4, 1, kMaxStreams);
  hyper.eps = static_cast<float>(json.number("hc_eps", kEpsRange, 1e-6));
  hyper.post_scale = static_cast<float>(json.number("hc_magnitude", kFactorRange, 2));
  hyper.post_eps = hyper.eps;
  hyper.attention = "hc_pre.hc_attn_layer.hc_";
  hyper.ffn = "hc_pre.hc_mlp_layer.hc_";
  hyper.head = "model.hc_pre.hc_head.hc_head_";
}

}  // namespace

void parse_hy_v4(ConfigReader& json, ModelConfig& config) {
  parse_mla(json, config,
            {.groups = 1,
             .top_groups = 1,
             .dense_layers = 1,
             .routed_scale = 2.827,
             .draft_layers = 0,
             .interleaved = false});
  parse_indexer(json, config, RopePairing::split_half);
  parse_indexer_types(json, config, 4);
  config.mla.index_place = RopePlace::last;
  config.mla.index_norm_eps = config.norm_eps;
  config.all_layers().problem.sink = true;
  config.sink_name = "learnable_sink_param";
  config.output_gate = OutputGate::elements;
  parse_streams(json, config);
  if (const double limit = json.number("swiglu_limit", kOptionalFactorRange, 10); limit > 0) {
    config.moe.activation = {.kind = ActivationKind::clamped_silu,
                             .limit = static_cast<float>(limit)};
  }
  config.renames = kHyNames;
}

}  // namespace lathe
