// Ling 3: layers of Kimi delta attention with a bounded decay for each one of latent attention
// with a gate of each head; DeepSeek V3's router and experts.
#include <array>

#include "model/config/config_delta.h"
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

constexpr std::array kBailingNames = {
    Renamed{"model.word_embeddings.", "model.embed_tokens."},
    Renamed{".attention.dense.", ".self_attn.o_proj."}, Renamed{".attention.", ".self_attn."},
    Renamed{".mlp.gate.expert_bias", ".mlp.gate.e_score_correction_bias"}};

}  // namespace

void parse_bailing_hybrid(ConfigReader& json, ModelConfig& config) {
  const MlaDefaults defaults{.q_lora = 0, .dense_layers = 2, .rope_theta = 6e6};
  parse_mla(json, config, defaults);
  json.only("score_function", "sigmoid");
  config.output_gate = OutputGate::heads;
  config.renames = kBailingNames;
  parse_bailing_delta(json, config);
}

}  // namespace lathe
