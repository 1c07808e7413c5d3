#include "model/config/registry.h"

#include <array>

#include "model/config/text_tower.h"

namespace lathe {
namespace {

constexpr std::array kArchitectures = {
    Architecture{"DeepseekV2ForCausalLM", parse_deepseek_v2},
    Architecture{"DeepseekV32ForCausalLM", parse_deepseek_v32},
    Architecture{"DeepseekV3ForCausalLM", parse_deepseek_v3},
    Architecture{"DeepseekV4ForCausalLM", parse_deepseek_v4},
    Architecture{"Gemma3ForCausalLM", parse_gemma3},
    Architecture{.name = "Glm4MoeLiteForCausalLM", .parse = parse_glm4_moe_lite, .norm_eps = 1e-5},
    Architecture{.name = "GlmMoeDsaForCausalLM", .parse = parse_glm_moe_dsa, .norm_eps = 1e-5},
    Architecture{
        .name = "GptOssForCausalLM", .parse = parse_gpt_oss, .mxfp4 = true, .norm_eps = 1e-5},
    Architecture{"LlamaForCausalLM", parse_llama},
    Architecture{.name = "Ministral3ForCausalLM", .parse = parse_ministral3, .norm_eps = 1e-5},
    Architecture{"MistralForCausalLM", parse_mistral},
    Architecture{"Qwen2ForCausalLM", parse_qwen2},
    Architecture{"Qwen3ForCausalLM", parse_qwen3},
    Architecture{"Qwen3MoeForCausalLM", parse_qwen3_moe},
    Architecture{"SarvamMLAForCausalLM", parse_sarvam_mla},
    Architecture{"YoutuForCausalLM", parse_youtu},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& a : kArchitectures) {
    if (a.name == name) return &a;
  }
  return nullptr;
}

std::vector<std::string> known_architectures() {
  std::vector<std::string> out;
  for (const Architecture& a : kArchitectures) out.emplace_back(a.name);
  for (const TextTower& tower : text_towers()) out.emplace_back(tower.name);
  return out;
}

}  // namespace lathe
