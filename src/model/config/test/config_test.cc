#include "model/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ModelConfig, GenerationConfigSpeaksLast) {
  const auto c = parse_model_config(
      qwen3().dump(),
      R"({"eos_token_id": [151645, 151643], "bos_token_id": 151643, "temperature": 0.6,
          "top_k": 20, "top_p": 0.95, "transformers_version": "5.0.0"})");
  ASSERT_TRUE(c.ok());
  EXPECT_THAT(c->eos, ElementsAre(151645, 151643));
  EXPECT_EQ(c->bos, 151643);
  EXPECT_EQ(c->generation.temperature, 0.6f);
  EXPECT_EQ(c->generation.top_k, 20);
  EXPECT_FALSE(c->generation.repetition_penalty);
  EXPECT_FALSE(parse_model_config(qwen3().dump(), "{").ok());
  for (const char* all : {R"({"top_k": 0})", R"({"top_k": -1})"}) {
    const auto of = parse_model_config(qwen3().dump(), all);
    ASSERT_TRUE(of.ok()) << all;
    EXPECT_FALSE(of->generation.top_k) << all;
  }
}

// What Python compares as equal, or a converter has written, is not the value that is meant.
TEST(ModelConfig, ValuesOfAnotherTypeAreRefusedByKey) {
  const auto with = [](Json j, const std::string& key, Json value) {
    j[key] = std::move(value);
    return refusal(j);
  };
  for (const auto& [key, value] : {std::pair{"model_type", Json(5)},
                                   {"model_type", Json::array({"qwen3"})},
                                   {"architectures", Json("Qwen3ForCausalLM")},
                                   {"architectures", Json::array({5})},
                                   {"hidden_act", Json(1)},
                                   {"hidden_size", Json("64")},
                                   {"hidden_size", Json(true)},
                                   {"hidden_size", Json(64.0)},
                                   {"rms_norm_eps", Json("1e-6")},
                                   {"rms_norm_eps", Json(true)},
                                   {"tie_word_embeddings", Json(0)},
                                   {"tie_word_embeddings", Json("false")},
                                   {"rope_scaling", Json("yarn")},
                                   {"eos_token_id", Json("3")},
                                   {"eos_token_id", Json(true)},
                                   {"quantization_config", Json("fp8")}}) {
    EXPECT_THAT(with(qwen3(), key, value), HasSubstr(std::string("config.json: ") + key))
        << value.dump();
  }
  EXPECT_THAT(with(qwen3(), "head_dim", 7),
              HasSubstr("config.json: head_dim: wanted a rotary part of an even number"));
  Json wrapped = {{"architectures", {"LlavaForConditionalGeneration"}}, {"text_config", qwen3()}};
  wrapped["text_config"]["model_type"] = 5;
  EXPECT_THAT(refusal(wrapped), HasSubstr("config.json: text_config: model_type: wanted a text"));
  wrapped["text_config"] = "qwen3";
  EXPECT_THAT(refusal(wrapped), HasSubstr("config.json: text_config: wanted an object"));
}

// An end token that no answer can have. pad_token_id may be the vocabulary's size, and class values
// are those of another vocabulary in small models.
TEST(ModelConfig, EndTokensAreInTheVocabulary) {
  Json j = qwen3();
  const std::string last = std::to_string(j["vocab_size"].get<int>());
  j["eos_token_id"] = j["vocab_size"];
  j["pad_token_id"] = j["vocab_size"];
  EXPECT_EQ(refusal(j), "config.json: eos_token_id: wanted ids below vocab_size, " + last +
                            ", got " + last + "; --override eos_token_id=ID");
  j["eos_token_id"] = {3, 99999999};
  EXPECT_THAT(refusal(j), HasSubstr("got 99999999"));
  j["eos_token_id"] = 2147483648;
  EXPECT_THAT(refusal(j), HasSubstr("eos_token_id"));
  j["eos_token_id"] = 3;
  EXPECT_THAT(parsed(j).eos, ElementsAre(3));
  const std::string generation = R"({"eos_token_id": [1, )" + last + R"(], "pad_token_id": )" +
                                 last + R"(, "suppress_tokens": [)" + last + "]}";
  const auto beyond = parse_model_config(j.dump(), generation);
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(beyond.error().message(), HasSubstr("generation_config.json: eos_token_id"));
  ConfigOverrides overrides;
  overrides.values = {"eos_token_id=5"};
  const auto other = parse_model_config(j.dump(), generation, overrides);
  ASSERT_TRUE(other.ok()) << other.error().message();
  EXPECT_THAT(other->eos, ElementsAre(5));
  // Beside a text model.
  Json tower = {{"architectures", {"Qwen3VLForConditionalGeneration"}},
                {"model_type", "qwen3_vl"},
                {"eos_token_id", 151936},
                {"text_config", qwen3()}};
  tower["text_config"]["model_type"] = "qwen3_vl_text";
  EXPECT_THAT(refusal(tower), HasSubstr("eos_token_id: wanted ids below"));
  Json small = qwen3();
  small["architectures"] = {"LlamaForCausalLM"};
  for (const char* key : {"max_window_layers", "use_sliding_window", "sliding_window"})
    small.erase(key);
  small["vocab_size"] = 2;
  EXPECT_THAT(parsed(small).eos, ElementsAre());
}

// Values that no request may have: each of them would be refused for what its client did not write.
TEST(ModelConfig, SamplingDefaultsAreInTheRangesOfRequests) {
  const auto said = [](const std::string& generation) {
    const auto config = parse_model_config(qwen3().dump(), generation);
    return config ? "accepted" : config.error().message();
  };
  for (const char* good : {R"({"temperature": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 2})",
                           R"({"temperature": 100, "top_p": 0.01, "min_p": 1})",
                           R"({"repetition_penalty": 0.1, "min_p": null})"}) {
    EXPECT_EQ(said(good), "accepted");
  }
  EXPECT_EQ(said(R"({"temperature": -3})"),
            "generation_config.json: temperature: wanted a number of 0 or more, got -3; "
            "mend the file, or delete the key");
  EXPECT_EQ(said(R"({"top_p": 1.5})"),
            "generation_config.json: top_p: wanted a number above 0, to 1, got 1.5; "
            "mend the file, or delete the key");
  EXPECT_EQ(said(R"({"top_p": 1e-300})"),
            "generation_config.json: top_p: wanted a number from 1e-45 to 1, got 1e-300; "
            "mend the file, or delete the key");
  EXPECT_EQ(said(R"({"min_p": -0.5})"),
            "generation_config.json: min_p: wanted a number from 0 to 1, got -0.5; "
            "mend the file, or delete the key");
  EXPECT_THAT(said(R"({"min_p": 1.5})"), HasSubstr("min_p: wanted a number from 0 to 1"));
  EXPECT_THAT(said(R"({"min_p": "x"})"), HasSubstr("min_p"));
  EXPECT_THAT(said(R"({"top_p": 0, "do_sample": false})"), HasSubstr("top_p"));
  EXPECT_THAT(said(R"({"repetition_penalty": 0})"), HasSubstr("repetition_penalty"));
  EXPECT_THAT(said(R"({"repetition_penalty": 2.5})"), HasSubstr("repetition_penalty"));
  EXPECT_THAT(said(R"({"temperature": 1e300})"), HasSubstr("temperature"));
}

// Such files also carry temperature and filters, which must not cause sampling.
TEST(ModelConfig, WithoutSamplingAnswersAreGreedy) {
  const std::string rest = R"("temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.05,
                              "repetition_penalty": 1.1})";
  const auto drawn = parse_model_config(qwen3().dump(), R"({"do_sample": true, )" + rest);
  ASSERT_TRUE(drawn.ok());
  EXPECT_EQ(drawn->generation.temperature, 0.6f);
  EXPECT_EQ(drawn->generation.min_p, 0.05f);
  const auto greedy = parse_model_config(qwen3().dump(), R"({"do_sample": false, )" + rest);
  ASSERT_TRUE(greedy.ok());
  EXPECT_EQ(greedy->generation.temperature, 0.0f);
  EXPECT_FALSE(greedy->generation.top_k);
  EXPECT_FALSE(greedy->generation.top_p);
  EXPECT_FALSE(greedy->generation.min_p);
  EXPECT_EQ(greedy->generation.repetition_penalty, 1.1f);
}

// Gemma 3's file. transformers samples at 1.0 where a file gives no temperature.
TEST(ModelConfig, SamplingWithoutATemperatureIsAtOne) {
  const auto temperature = [](const char* generation) {
    const auto config = parse_model_config(qwen3().dump(), generation);
    return config ? config->generation.temperature : -1.0f;
  };
  EXPECT_EQ(temperature(R"({"do_sample": true, "top_k": 64, "top_p": 0.95})"), 1.0f);
  EXPECT_EQ(temperature(R"({"do_sample": true, "temperature": null})"), 1.0f);
  EXPECT_EQ(temperature(R"({"do_sample": true, "temperature": 0})"), 0.0f);
  EXPECT_EQ(temperature(R"({"do_sample": null, "top_k": 64})"), std::nullopt);
  EXPECT_EQ(temperature(R"({"top_k": 64, "top_p": 0.95})"), std::nullopt);
}

// Both spellings in one file must agree, or are rejected.
TEST(ModelConfig, TwoSpellingsOfRopeAgreeOrAreRefused) {
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"rope_theta", 1e6}};
  Json j = qwen3();
  j["rope_parameters"] = yarn;
  j["rope_scaling"] = yarn;
  EXPECT_TRUE(parse_model_config(j.dump()).ok());
  // Older files keep theta next to it.
  j["rope_theta"] = 1e6;
  j["rope_scaling"].erase("rope_theta");
  EXPECT_TRUE(parse_model_config(j.dump()).ok());
  j["rope_scaling"]["factor"] = 8.0;
  auto refused = parse_model_config(j.dump());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(),
              testing::AllOf(HasSubstr("rope_scaling"), HasSubstr("rope_parameters")));
  j["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  refused = parse_model_config(j.dump());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(),
              testing::AllOf(HasSubstr("\"yarn\""), HasSubstr("\"linear\"")));
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_FALSE(parse_model_config(j.dump()).ok());
  j["rope_scaling"] = nullptr;
  EXPECT_TRUE(parse_model_config(j.dump()).ok());
}

TEST(ModelConfig, RefusesByName) {
  const auto with = [](Json j, const std::string& key, Json value) {
    j[key] = std::move(value);
    return refusal(j);
  };
  EXPECT_THAT(with(qwen3(), "architectures", {"MambaForCausalLM"}),
              testing::AllOf(HasSubstr("MambaForCausalLM"), HasSubstr("DeepseekV3ForCausalLM"),
                             HasSubstr("Qwen3MoeForCausalLM")));
  EXPECT_THAT(with(qwen3(), "hidden_act", "gelu"), HasSubstr("hidden_act: wanted silu"));
  EXPECT_THAT(with(qwen3(), "hidden_size", "1024"), HasSubstr("hidden_size: wanted an integer"));
  EXPECT_THAT(with(qwen3(), "hidden_size", nullptr), HasSubstr("got nothing"));
  EXPECT_THAT(with(qwen3(), "num_hidden_layers", 0), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(with(qwen3(), "num_hidden_layers", 1e30), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(with(qwen3(), "num_key_value_heads", 5), HasSubstr("kv_heads"));
  EXPECT_THAT(with(qwen3(), "head_dim", 40), HasSubstr("head_dim"));
  EXPECT_THAT(with(qwen3(), "rope_scaling", {{"rope_type", "axial"}}), HasSubstr("axial"));
  EXPECT_THAT(with(qwen3(), "rope_scaling", {{"rope_type", "linear"}, {"factor", 0.1}}),
              HasSubstr("rope_scaling: factor: wanted a finite number from 1 to 4096"));
  EXPECT_THAT(with(qwen3(), "quantization_config",
                   {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}}),
              HasSubstr("[64, 64]"));
  Json llama = qwen3();
  llama["architectures"] = {"LlamaForCausalLM"};
  EXPECT_THAT(with(llama, "mlp_bias", true), HasSubstr("mlp_bias"));
  EXPECT_THAT(with(deepseek_v3(), "scoring_func", "softmax"), HasSubstr("scoring_func"));
  EXPECT_THAT(with(deepseek_v3(), "topk_method", "greedy"), HasSubstr("topk_method"));
  EXPECT_THAT(with(deepseek_v3(), "n_group", 7), HasSubstr("n_group"));
  EXPECT_THAT(with(deepseek_v3(), "num_experts_per_tok", 200), HasSubstr("128 experts"));
  EXPECT_THAT(with(deepseek_v3(), "num_key_value_heads", 8), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(with(glm(), "q_lora_rank", nullptr), HasSubstr("q_lora_rank"));
  EXPECT_THAT(with(glm(), "index_head_dim", 32), HasSubstr("index_head_dim"));
}

// transformers 5.24 (modeling_rope_utils.py, standardize_rope_params): the value at the top of
// config.json beats the one in rope_scaling or rope_parameters, for the types that have one.
TEST(ModelConfig, A6OriginalContextAtTheTopWins) {
  Json llama = qwen3();
  llama["architectures"] = {"LlamaForCausalLM"};
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0}};
  for (const Json& object : {yarn, llama3}) {
    for (const char* spelling : {"rope_scaling", "rope_parameters"}) {
      Json inside = llama;
      inside[spelling] = object;
      inside[spelling]["original_max_position_embeddings"] = 4096;
      Json top = inside;
      top[spelling]["original_max_position_embeddings"] = 32768;
      top["original_max_position_embeddings"] = 4096;
      EXPECT_EQ(parsed(top).groups.front().rope, parsed(inside).groups.front().rope) << top;
      top[spelling].erase("original_max_position_embeddings");
      EXPECT_EQ(parsed(top).groups.front().rope, parsed(inside).groups.front().rope) << top;
    }
  }
  // Latent attention reads the same object.
  Json deepseek = deepseek_v3();
  deepseek["original_max_position_embeddings"] = 8192;
  EXPECT_EQ(parsed(deepseek).groups.front().rope.yarn->original_context, 8192);
  // Objects of one layer type each keep their own.
  Json gemma = gemma3();
  gemma["rope_scaling"] = yarn;
  gemma["original_max_position_embeddings"] = 4096;
  EXPECT_EQ(parsed(gemma).groups[1].rope.yarn->original_context, 32768);
  llama["original_max_position_embeddings"] = "4096";
  EXPECT_THAT(refusal(llama),
              HasSubstr("original_max_position_embeddings: wanted a finite number"));
}

// Absent keys, against the fields of transformers 5.24's configuration classes. null is not absent.
TEST(ModelConfig, A7AbsentKeysHaveTheClasssValues) {
  // DeepseekV3Config, GlmMoeDsaConfig: routers.
  const auto experts = {"n_group", "topk_group", "routed_scaling_factor", "n_shared_experts"};
  const ModelConfig v3 = parsed(without(deepseek_v3(), experts));
  EXPECT_EQ(v3.moe.groups, 8);
  EXPECT_EQ(v3.moe.top_groups, 4);
  EXPECT_FLOAT_EQ(v3.moe.scale, 2.5f);
  EXPECT_EQ(v3.moe.shared, 1);
  const ModelConfig of_glm =
      parsed(without(glm(), {"n_group", "topk_group", "q_lora_rank", "rms_norm_eps"}));
  EXPECT_EQ(of_glm.moe.groups, 1);
  EXPECT_EQ(of_glm.moe.top_groups, 1);
  EXPECT_EQ(of_glm.mla.q_lora, 2048);
  EXPECT_EQ(of_glm.norm_eps, 1e-5f);
  Json null_group = deepseek_v3();
  null_group["n_group"] = nullptr;
  EXPECT_THAT(refusal(null_group),
              HasSubstr("n_group: wanted an integer from 1 to 256, got nothing"));
  // Where no layer has experts, the router's keys do not matter.
  Json dense = deepseek_v3();
  dense["n_group"] = nullptr;
  dense["first_k_dense_replace"] = 61;
  EXPECT_EQ(parsed(dense).moe.experts, 0);
  // null: q is one projection (DeepSeek V2 Lite).
  EXPECT_EQ(parsed(without(deepseek_v3(), {"q_lora_rank"})).mla.q_lora, 1536);
  Json plain_q = deepseek_v3();
  plain_q["q_lora_rank"] = nullptr;
  EXPECT_EQ(parsed(plain_q).mla.q_lora, 0);

  // MistralConfig: absent 4096, null no window.
  Json mistral = without(qwen3(), {"sliding_window", "num_key_value_heads"});
  mistral["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(parsed(mistral).attention(27).window, 4096);
  EXPECT_EQ(parsed(mistral).attention(0).kv_heads, 8);
  mistral["sliding_window"] = nullptr;
  mistral["num_key_value_heads"] = nullptr;  // all heads
  EXPECT_EQ(parsed(mistral).attention(27).window, 0);
  EXPECT_EQ(parsed(mistral).attention(0).kv_heads, 16);

  // Qwen3Config: 32 key heads, head_dim 128, a window from layer 28 on.
  Json wide = without(qwen3(), {"num_key_value_heads", "head_dim"});
  wide["num_attention_heads"] = 64;
  EXPECT_EQ(parsed(wide).attention(0).kv_heads, 32);
  EXPECT_EQ(parsed(wide).attention(0).head_dim, 128);
  Json windowed = without(qwen3(), {"sliding_window", "max_window_layers"});
  windowed["use_sliding_window"] = true;
  windowed["num_hidden_layers"] = 30;
  EXPECT_EQ(parsed(windowed).attention(27).window, 0);
  EXPECT_EQ(parsed(windowed).attention(28).window, 4096);
  windowed["sliding_window"] = nullptr;
  EXPECT_EQ(parsed(windowed).attention(28).window, 0);

  // Gemma3TextConfig.
  const ModelConfig gemma =
      parsed(without(gemma3(), {"head_dim", "sliding_window", "num_key_value_heads"}));
  EXPECT_EQ(gemma.groups[0].problem.head_dim, 256);
  EXPECT_EQ(gemma.groups[0].problem.kv_heads, 4);
  EXPECT_EQ(gemma.groups[0].problem.window, 4096);

  // GptOssConfig scales RoPE by default.
  const ModelConfig oss = parsed(without(gpt_oss(), {"rms_norm_eps", "head_dim", "sliding_window",
                                                     "num_key_value_heads", "rope_scaling"}));
  EXPECT_EQ(oss.norm_eps, 1e-5f);
  EXPECT_EQ(oss.groups[0].problem, parsed(gpt_oss()).groups[0].problem);
  EXPECT_EQ(oss.groups[0].rope, parsed(gpt_oss()).groups[0].rope);
}

// e4m3 under torch's name; activations are not quantised, so their scheme does not matter.
TEST(ModelConfig, D4Fp8FormatsAreTakenOrNamed) {
  const auto with = [](Json changes) {
    Json j = deepseek_v3();
    for (const auto& [key, value] : changes.items()) j["quantization_config"][key] = value;
    return j;
  };
  EXPECT_TRUE(parsed(with({{"fmt", "float8_e4m3fn"}})).block_fp8);
  EXPECT_THAT(refusal(with({{"fmt", "e5m2"}})),
              HasSubstr("fmt: wanted e4m3 or float8_e4m3fn, got \"e5m2\""));
  const ModelConfig tensor =
      parsed(with({{"weight_block_size", nullptr}, {"activation_scheme", "static"}}));
  EXPECT_EQ(tensor.quantization, Quantization::fp8_rows);
  EXPECT_FALSE(tensor.block_fp8);
  EXPECT_TRUE(parsed(with({{"activation_scheme", "static"}})).block_fp8);
  for (const char* number : {"Infinity", "-Infinity", "NaN"}) {
    std::string text = deepseek_v3().dump();
    text.replace(text.find("10000"), 5, number);  // rope_theta
    const auto config = parse_model_config(text);
    ASSERT_FALSE(config.ok());
    EXPECT_THAT(config.error().message(),
                testing::AllOf(HasSubstr("rope_theta: wanted a finite number"), HasSubstr(number)));
  }
}

// Python's json writes them. Where no number is read they change nothing (Nemotron-H).
TEST(ModelConfig, B10InfinityIsAnErrorOnlyWhereItIsRead) {
  std::string text = deepseek_v3().dump();
  text.insert(1, R"("time_step_limit": [0.0, Infinity, -Infinity, NaN], "a\\": "\"Infinity",)");
  EXPECT_TRUE(parse_model_config(text).ok()) << text;
  Json other = deepseek_v3();
  other["architectures"] = {"NemotronHForCausalLM"};
  text = other.dump();
  text.insert(1, R"("time_step_limit": [0.0, Infinity],)");
  EXPECT_THAT(parse_model_config(text).error().message(), HasSubstr("NemotronHForCausalLM"));
}

// LlamaConfig, DeepseekV3Config, Qwen3Config, Gemma3TextConfig of transformers 5.24.
TEST(ModelConfig, AbsentTokensAreTheClasss) {
  const auto tokens = [](Json j, const std::string& architecture) {
    j["architectures"] = {architecture};
    j.erase("bos_token_id");
    j.erase("eos_token_id");
    const ModelConfig c = parsed(j);
    j["eos_token_id"] = nullptr;
    EXPECT_TRUE(parsed(j).eos.empty());
    return std::pair(c.bos.value_or(-1), c.eos.empty() ? -1 : c.eos.front());
  };
  EXPECT_EQ(tokens(qwen3(), "LlamaForCausalLM"), std::pair(1, 2));
  EXPECT_EQ(tokens(qwen3(), "Qwen3ForCausalLM"), std::pair(-1, -1));
  EXPECT_EQ(tokens(deepseek_v3(), "DeepseekV3ForCausalLM"), std::pair(0, 1));
  EXPECT_EQ(tokens(gemma3(), "Gemma3ForCausalLM"), std::pair(2, 1));
  EXPECT_EQ(tokens(glm(), "GlmMoeDsaForCausalLM"), std::pair(0, 1));
}

TEST(ModelConfig, D4AFileOfWeightsIsNamedByItsFormat) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(testing::TempDir()) / "lathe_d4_formats";
  fs::create_directories(dir);
  for (const auto& [file, format] : {std::pair{"x.gguf", "GGUF"}, std::pair{"x.pth", "pickle"},
                                     std::pair{"x.safetensors", "safetensors"}}) {
    std::ofstream(dir / file) << "GGUF";
    const auto config = load_model_config((dir / file).string());
    ASSERT_FALSE(config.ok());
    EXPECT_THAT(config.error().message(), testing::AllOf(HasSubstr(file), HasSubstr(format)));
  }
  fs::remove_all(dir);
}

// ModelOpt's checkpoints say how they are quantised in a file of their own.
TEST(ModelConfig, D1HfQuantConfigCounts) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(testing::TempDir()) / "lathe_d1_hf_quant";
  fs::create_directories(dir);
  std::ofstream(dir / "config.json") << qwen3().dump();
  EXPECT_TRUE(load_model_config(dir.string()).ok());
  const auto with = [&](const Json& quantization) {
    std::ofstream(dir / "hf_quant_config.json") << Json{{"quantization", quantization}}.dump();
    const auto config = load_model_config(dir.string());
    return config ? "accepted" : config.error().message();
  };
  EXPECT_THAT(with({{"quant_algo", "NVFP4_AWQ"}, {"kv_cache_quant_algo", "FP8"}}),
              testing::AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("\"NVFP4_AWQ\"")));
  EXPECT_EQ(with({{"quant_algo", "NVFP4"}, {"kv_cache_quant_algo", "FP8"}}), "accepted");
  EXPECT_EQ(load_model_config(dir.string())->quantization, Quantization::nvfp4);
  EXPECT_EQ(with({{"quant_algo", nullptr}, {"kv_cache_quant_algo", nullptr}}), "accepted");
  fs::remove_all(dir);
}

TEST(ModelConfig, TextThatIsNoConfig) {
  EXPECT_FALSE(parse_model_config("").ok());
  EXPECT_FALSE(parse_model_config("[]").ok());
  EXPECT_FALSE(parse_model_config("{}").ok());
  EXPECT_FALSE(parse_model_config(R"({"architectures": [3]})").ok());
}

}  // namespace
}  // namespace lathe
