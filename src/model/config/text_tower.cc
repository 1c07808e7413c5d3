#include "model/config/text_tower.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "base/json.h"
#include "io/text/json_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

constexpr TextModel kGemma3Text{
    "gemma3_text",
    {.name = "gemma3_text", .parse = parse_gemma3, .bos = 2, .eos = 1},
    // Gemma3TextConfig: published files give few sizes.
    R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "max_position_embeddings": 131072})"};
constexpr TextModel kGemma4Text{
    "gemma4_text",
    {.name = "gemma4_text", .parse = parse_gemma4, .bos = 2, .eos = 1},
    // Gemma4TextConfig
    R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 30, "num_attention_heads": 8, "max_position_embeddings": 131072})"};
constexpr TextModel kDeepseekV3{
    "deepseek_v3", {.name = "deepseek_v3", .parse = parse_deepseek_v3, .bos = 0, .eos = 1}};
constexpr TextModel kKimiK2{"kimi_k2",
                            {.name = "kimi_k2", .parse = parse_deepseek_v3, .bos = 0, .eos = 1}};
constexpr TextModel kMistralText{"mistral",
                                 {.name = "mistral", .parse = parse_mistral, .bos = 1, .eos = 2}};
constexpr TextModel kMinistral3{
    "ministral3",
    {.name = "ministral3", .parse = parse_ministral3, .norm_eps = 1e-5, .bos = 1, .eos = 2}};

constexpr TextModel kMistral4{"mistral4",
                              {.name = "mistral4", .parse = parse_mistral4, .bos = 1, .eos = 2}};

constexpr TextModel kGlm5Next{
    "glm5_next_text",
    {.name = "glm5_next_text", .parse = parse_glm5_next, .norm_eps = 1e-5},
    // Glm5NextTextConfig
    R"({"n_routed_experts": 288, "moe_intermediate_size": 2048, "num_experts_per_tok": 8,
        "num_attention_heads": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 256,
        "v_head_dim": 256, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32})"};

constexpr TextModel kLlama4Text{
    "llama4_text",
    {.name = "llama4_text", .parse = parse_llama4, .norm_eps = 1e-5, .bos = 1, .eos = 2}};

constexpr std::array kGemma3 = {kGemma3Text};
constexpr std::array kGemma4 = {kGemma4Text};
constexpr std::array kGlm5 = {kGlm5Next};
constexpr std::array kKimi = {kKimiK2, kDeepseekV3};
constexpr std::array kLlama4 = {kLlama4Text};
constexpr std::array kMistral3 = {kMistralText, kMinistral3, kMistral4};
constexpr std::array kQwen3Vl = {TextModel{
    "qwen3_vl_text", {.name = "qwen3_vl_text", .parse = parse_qwen3}, R"({"rope_theta": 500000})"}};
constexpr std::array kQwen3VlMoe = {
    TextModel{"qwen3_vl_moe_text",
              {.name = "qwen3_vl_moe_text", .parse = parse_qwen3_vl_moe},
              R"({"rope_theta": 500000, "num_key_value_heads": 16})"}};

constexpr TextModel kQwen35Text{"qwen3_5_text", {.name = "qwen3_5_text", .parse = parse_qwen3_5}};
constexpr TextModel kQwen35MoeText{"qwen3_5_moe_text",
                                   {.name = "qwen3_5_moe_text", .parse = parse_qwen3_5_moe}};
constexpr std::array kQwen35 = {kQwen35Text};
constexpr std::array kQwen35Moe = {kQwen35MoeText};

constexpr std::array kTowers = {
    TextTower{"Gemma3ForConditionalGeneration", kGemma3, true},
    TextTower{"Gemma4ForConditionalGeneration", kGemma4, true},
    TextTower{"Glm5NextForConditionalGeneration", kGlm5, false},
    TextTower{"KimiK25ForConditionalGeneration", kKimi, false},
    TextTower{"Llama4ForConditionalGeneration", kLlama4, false},
    TextTower{"Mistral3ForConditionalGeneration", kMistral3, true},
    TextTower{"Qwen3VLForConditionalGeneration", kQwen3Vl, false},
    TextTower{"Qwen3VLMoeForConditionalGeneration", kQwen3VlMoe, true},
    TextTower{"Qwen3_5ForConditionalGeneration", kQwen35, false},
    TextTower{"Qwen3_5MoeForConditionalGeneration", kQwen35Moe, false},
};

// Text models of a type of their own, which are the same in every wrapper.
constexpr std::array kAnywhere = {
    kDeepseekV3,
    kGemma3Text,
    kGemma4Text,
    kGlm5Next,
    kKimiK2,
    kLlama4Text,
    kMinistral3,
    kMistral4,
    kMistralText,
    TextModel{"deepseek_v2",
              {.name = "deepseek_v2", .parse = parse_deepseek_v2, .bos = 1, .eos = 2}},
    TextModel{"glm4_moe_lite",
              {.name = "glm4_moe_lite",
               .parse = parse_glm4_moe_lite,
               .norm_eps = 1e-5,
               .bos = 0,
               .eos = 1}},
    TextModel{"gpt_oss",
              {.name = "gpt_oss", .parse = parse_gpt_oss, .mxfp4 = true, .norm_eps = 1e-5}},
    TextModel{"llama", {.name = "llama", .parse = parse_llama, .bos = 1, .eos = 2}},
    TextModel{"qwen2", {.name = "qwen2", .parse = parse_qwen2}},
    TextModel{"qwen3", {.name = "qwen3", .parse = parse_qwen3}},
    kQwen35MoeText,
    kQwen35Text,
    TextModel{"qwen3_moe", {.name = "qwen3_moe", .parse = parse_qwen3_moe}},
};

// What a wrapper's checkpoint puts before the names of the text model, and what that is instead.
// Files of older and newer versions of transformers differ.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kPrefixes = {
    {{"language_model.model.", "model."},
     {"language_model.lm_head.", "lm_head."},
     {"model.language_model.", "model."},
     {"model.text_model.", "model."}}};
// With or without "model." before them.
constexpr std::array<std::string_view, 9> kOtherTowers = {
    "vision_tower.", "vision_model.", "audio_tower.", "multi_modal_projector.",
    "mm_projector.", "connector.",    "visual.",      "embed_vision.",
    "embed_audio."};

bool gives(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && !it->is_null();
}

}  // namespace

std::span<const TextTower> text_towers() { return kTowers; }

const TextTower* find_text_tower(std::string_view name) {
  for (const TextTower& tower : kTowers) {
    if (tower.name == name) return &tower;
  }
  return nullptr;
}

std::optional<TextTower> any_tower(const nlohmann::json& whole, std::string_view name) {
  const auto text = whole.find("text_config");
  if (text == whole.end() || !text->is_object()) return std::nullopt;
  const auto type = text->find("model_type");
  if (type == text->end() || !type->is_string()) return std::nullopt;
  for (const TextModel& model : kAnywhere) {
    if (*type == model.type) {
      return TextTower{name, {&model, 1}, model.type.starts_with("gemma")};
    }
  }
  return std::nullopt;
}

std::string text_model_type(const nlohmann::json& whole) {
  const auto text = whole.find("text_config");
  if (text == whole.end() || !text->is_object()) return {};
  const auto type = text->find("model_type");
  return type != text->end() && type->is_string() ? type->get<std::string>() : "unknown";
}

Result<TextConfig> read_text_config(const nlohmann::json& whole, const TextTower& tower) {
  const auto text = whole.find("text_config");
  if (text == whole.end() || !text->is_object()) {
    return Error{ErrorCode::malformed, "config.json: text_config", "an object",
                 text == whole.end() ? "nothing" : json_excerpt(*text), ""};
  }
  ConfigReader reader(*text, "config.json: text_config");
  const std::string type = reader.text("model_type", tower.models.front().type);
  TextConfig out{*text, nullptr};
  std::string known;
  for (const TextModel& model : tower.models) {
    if (model.type == type) out.model = &model;
    known += (known.empty() ? "" : " or ") + std::string(model.type);
  }
  if (out.model == nullptr) {
    reader.refuse("model_type", fmt::format("{}, a text model of {}", known, tower.name),
                  quote(type));
  }
  if (reader.error()) return *reader.error();
  for (const char* key : {"quantization_config", "bos_token_id", "eos_token_id"}) {
    if (!gives(out.json, key) && gives(whole, key)) out.json[key] = whole[key];
  }
  // The whole model's value is the one that its head follows.
  constexpr const char* kTied = "tie_word_embeddings";
  if (gives(whole, kTied)) {
    out.json[kTied] = whole[kTied];
  } else if (!gives(out.json, kTied)) {
    out.json[kTied] = tower.tied;
  }
  const nlohmann::json defaults = *parse_json(out.model->defaults, "defaults");
  for (const auto& [key, value] : defaults.items()) {
    if (!out.json.contains(key)) out.json[key] = value;
  }
  return out;
}

std::string text_tensor_name(std::string_view name) {
  for (const auto& [prefix, instead] : kPrefixes) {
    if (name.starts_with(prefix)) {
      return std::string(instead) + std::string(name.substr(prefix.size()));
    }
  }
  constexpr std::string_view kModel = "model.";
  const std::string_view inner = name.starts_with(kModel) ? name.substr(kModel.size()) : name;
  for (const std::string_view prefix : kOtherTowers) {
    if (inner.starts_with(prefix)) return {};
  }
  return std::string(name);
}

}  // namespace lathe
