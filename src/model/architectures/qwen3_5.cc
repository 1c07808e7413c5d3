// Qwen 3 Next, 3.5 and 3.6: three layers of a gated delta net (arXiv 2412.06464) for each one of
// grouped-query attention with a gate of its output; norm weights are stored minus 1.
#include "model/config/config_delta.h"
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

void parse_gated_attention(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 2, .head_dim = 256},
                 {.partial = 0.25, .reads_share = true});
  config.attention_bias = json.flag("attention_bias", false);
  config.attention_out_bias = config.attention_bias;
  config.qk_norm = QkNorm::heads;
  // Files of Qwen 3.5 name the gate, which transformers' class always has.
  config.output_gate = json.flag("attn_output_gate", true) ? OutputGate::with_q : OutputGate::none;
  config.norm_offset = 1;
  json.only_false("use_sliding_window");
  parse_delta_net(json, config);
  config.draft_tensors = DraftTensors::mtp;
  config.draft_layers = json.integer(
      json.first_of({"mtp_num_hidden_layers", "num_nextn_predict_layers"}), 1, 0, 1024);
}

// experts, top_k: where the keys are absent.
void parse_gated_experts(ConfigReader& json, ModelConfig& config, std::int32_t experts,
                         std::int32_t top_k) {
  MoeConfig& moe = config.moe;
  moe.experts = json.integer("num_experts", experts, 1, 4096);
  moe.ffn = json.integer("moe_intermediate_size", 512, 1, ConfigReader::kMaxWidth);
  moe.top_k = json.integer("num_experts_per_tok", top_k, 1, moe.experts);
  moe.scoring = RouterScoring::softmax;
  moe.normalize = json.flag("norm_topk_prob", true);
  moe.shared = 1;
  moe.shared_ffn = json.integer("shared_expert_intermediate_size", 512, 1, ConfigReader::kMaxWidth);
  moe.shared_gate = true;
  moe.names.shared = "shared_expert.";
}

}  // namespace

void parse_qwen3_5(ConfigReader& json, ModelConfig& config) { parse_gated_attention(json, config); }

void parse_qwen3_5_moe(ConfigReader& json, ModelConfig& config) {
  parse_gated_attention(json, config);
  if (set_expert_layers(json, config)) parse_gated_experts(json, config, 256, 8);
}

void parse_qwen3_next(ConfigReader& json, ModelConfig& config) {
  parse_gated_attention(json, config);
  config.delta.tensors = DeltaTensors::key_heads;
  if (set_expert_layers(json, config)) parse_gated_experts(json, config, 512, 10);
}

}  // namespace lathe
