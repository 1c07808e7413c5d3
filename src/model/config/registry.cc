#include "model/config/registry.h"

#include <array>

#include "model/config/text_tower.h"

namespace lathe {
namespace {

constexpr std::array kArchitectures = {
    Architecture{.name = "AXK1ForCausalLM", .parse = parse_axk1, .bos = 163691, .eos = 163691},
    Architecture{.name = "AXK2ForCausalLM", .parse = parse_axk2, .bos = 163691, .eos = 163691},
    Architecture{.name = "BailingHybridForCausalLM", .parse = parse_bailing_hybrid, .eos = 156895},
    Architecture{.name = "BailingMoeV3ForCausalLM", .parse = parse_bailing_hybrid, .eos = 156895},
    Architecture{.name = "DeepseekV2ForCausalLM", .parse = parse_deepseek_v2, .bos = 1, .eos = 2},
    Architecture{.name = "DeepseekV32ForCausalLM", .parse = parse_deepseek_v32, .bos = 0, .eos = 1},
    Architecture{.name = "DeepseekV3ForCausalLM", .parse = parse_deepseek_v3, .bos = 0, .eos = 1},
    Architecture{.name = "DeepseekV4ForCausalLM", .parse = parse_deepseek_v4, .bos = 0, .eos = 1},
    Architecture{
        .name = "Exaone4ForCausalLM", .parse = parse_exaone4, .norm_eps = 1e-5, .bos = 0, .eos = 2},
    Architecture{.name = "Gemma3ForCausalLM", .parse = parse_gemma3, .bos = 2, .eos = 1},
    Architecture{.name = "Gemma4ForCausalLM", .parse = parse_gemma4, .bos = 2, .eos = 1},
    Architecture{
        .name = "Glm4ForCausalLM", .parse = parse_glm4, .norm_eps = 1.5625e-7, .eos = 151329},
    Architecture{.name = "Glm4MoeForCausalLM", .parse = parse_glm4_moe, .norm_eps = 1e-5},
    Architecture{.name = "Glm4MoeLiteForCausalLM",
                 .parse = parse_glm4_moe_lite,
                 .norm_eps = 1e-5,
                 .bos = 0,
                 .eos = 1},
    Architecture{.name = "Glm5NextForCausalLM", .parse = parse_glm5_next, .norm_eps = 1e-5},
    Architecture{.name = "GlmMoeDsaForCausalLM",
                 .parse = parse_glm_moe_dsa,
                 .norm_eps = 1e-5,
                 .bos = 0,
                 .eos = 1},
    Architecture{
        .name = "GptOssForCausalLM", .parse = parse_gpt_oss, .mxfp4 = true, .norm_eps = 1e-5},
    Architecture{.name = "GraniteForCausalLM", .parse = parse_granite, .bos = 1, .eos = 2},
    Architecture{.name = "HYV4ForCausalLM",
                 .parse = parse_hy_v4,
                 .norm_eps = 1e-5,
                 .bos = 120000,
                 .eos = 120025},
    Architecture{.name = "KimiLinearForCausalLM",
                 .parse = parse_kimi_linear,
                 .norm_eps = 1e-5,
                 .bos = 163584,
                 .eos = 163586},
    Architecture{.name = "LlamaForCausalLM", .parse = parse_llama, .bos = 1, .eos = 2},
    Architecture{.name = "MiMoForCausalLM", .parse = parse_mimo},
    Architecture{
        .name = "MiMoV2FlashForCausalLM", .parse = parse_mimo_v2_flash, .norm_eps = 1e-5, .bos = 1},
    Architecture{.name = "MiniCPM3ForCausalLM",
                 .parse = parse_minicpm3,
                 .norm_eps = 1e-5,
                 .bos = 1,
                 .eos = 2},
    Architecture{
        .name = "MiniMaxM2ForCausalLM", .parse = parse_minimax_m2, .bos = 200034, .eos = 200020},
    Architecture{.name = "Ministral3ForCausalLM",
                 .parse = parse_ministral3,
                 .norm_eps = 1e-5,
                 .bos = 1,
                 .eos = 2},
    Architecture{.name = "Mistral4ForCausalLM", .parse = parse_mistral4, .bos = 1, .eos = 2},
    Architecture{.name = "MistralForCausalLM", .parse = parse_mistral, .bos = 1, .eos = 2},
    Architecture{
        .name = "MixtralForCausalLM", .parse = parse_mixtral, .norm_eps = 1e-5, .bos = 1, .eos = 2},
    Architecture{.name = "Olmo2ForCausalLM", .parse = parse_olmo2, .norm_eps = 1e-5, .eos = 50279},
    Architecture{.name = "Olmo3ForCausalLM", .parse = parse_olmo3, .norm_eps = 1e-5, .eos = 50279},
    Architecture{
        .name = "Phi3ForCausalLM", .parse = parse_phi3, .norm_eps = 1e-5, .bos = 1, .eos = 32000},
    Architecture{"Qwen2ForCausalLM", parse_qwen2},
    Architecture{"Qwen3ForCausalLM", parse_qwen3},
    Architecture{"Qwen3MoeForCausalLM", parse_qwen3_moe},
    Architecture{"Qwen3NextForCausalLM", parse_qwen3_next},
    Architecture{"Qwen3_5ForCausalLM", parse_qwen3_5},
    Architecture{"Qwen3_5MoeForCausalLM", parse_qwen3_5_moe},
    Architecture{.name = "SarvamMLAForCausalLM", .parse = parse_sarvam_mla},
    Architecture{.name = "SeedOssForCausalLM", .parse = parse_seed_oss, .bos = 0, .eos = 2},
    Architecture{
        .name = "SmolLM3ForCausalLM", .parse = parse_smollm3, .bos = 128000, .eos = 128001},
    Architecture{.name = "YoutuForCausalLM", .parse = parse_youtu, .bos = 128000, .eos = 128001},
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
