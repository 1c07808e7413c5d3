// Every number of a config.json has a range, and what is outside it is refused by its key.
#include <gmock/gmock.h>

#include <limits>

#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Wrong {
  std::string path;  // of the key: "rope_scaling/factor"
  Json value;
};

Json v4() {
  return {{"architectures", {"DeepseekV4ForCausalLM"}},
          {"vocab_size", 512},
          {"hidden_size", 256},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 8},
          {"head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"q_lora_rank", 128},
          {"o_lora_rank", 64},
          {"o_groups", 2},
          {"index_n_heads", 4},
          {"index_head_dim", 64},
          {"index_topk", 64},
          {"sliding_window", 32},
          {"n_routed_experts", 8},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 64},
          {"max_position_embeddings", 4096}};
}

Json granite() {
  return {{"architectures", {"GraniteForCausalLM"}},
          {"vocab_size", 512},
          {"hidden_size", 256},
          {"intermediate_size", 256},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"max_position_embeddings", 4096}};
}

void expect_refused(Json config, const std::vector<Wrong>& wrong) {
  ASSERT_EQ(refusal(config), "accepted");
  for (const auto& [path, value] : wrong) {
    const Json::json_pointer at("/" + path);
    Json changed = config;
    changed[at] = value;
    const std::string key = path.substr(path.rfind('/') + 1);
    EXPECT_THAT(refusal(changed), AllOf(HasSubstr("config.json: "), HasSubstr(key + ": wanted "),
                                        HasSubstr("got " + value.dump()), HasSubstr("; ")))
        << path << " " << value;
  }
}

TEST(ConfigRanges, ScalesOfExperts) {
  std::vector<Wrong> wrong;
  for (const double v : {1e300, 1e7, 0.0, -2.5, 1e-300}) {
    wrong.push_back({"routed_scaling_factor", v});
  }
  expect_refused(deepseek_v3(), wrong);
  expect_refused(v4(), wrong);
}

TEST(ConfigRanges, StreamsAndLimits) {
  expect_refused(v4(), {{"hc_eps", -1},
                        {"hc_eps", 0},
                        {"hc_eps", 1e300},
                        {"hc_mult", 0},
                        {"hc_sinkhorn_iters", -20},
                        {"swiglu_limit", -1},
                        {"swiglu_limit", 1e300},
                        {"rms_norm_eps", -1e-6},
                        {"compress_rope_theta", 1e300},
                        {"num_hash_layers", -1}});
  Json none = v4();
  none["swiglu_limit"] = 0;  // no limit
  EXPECT_EQ(parsed(none).activation.kind, ActivationKind::silu);
  expect_refused(gpt_oss(), {{"swiglu_limit", -7.0},
                             {"swiglu_limit", 0.0},
                             {"swiglu_alpha", 0.0},
                             {"swiglu_alpha", 1e30}});
}

TEST(ConfigRanges, Rope) {
  std::vector<Wrong> wrong;
  for (const double v : {1e30, 4097.0, 0.5, 0.0, -40.0})
    wrong.push_back({"rope_scaling/factor", v});
  for (const double v : {-1.0, 1e30}) {
    for (const char* key : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) {
      wrong.push_back({std::string("rope_scaling/") + key, v});
    }
    wrong.push_back({"rope_scaling/original_max_position_embeddings", v});
    wrong.push_back({"rope_scaling/attention_factor", v});
    wrong.push_back({"rope_theta", v});
  }
  expect_refused(deepseek_v3(), wrong);
  Json llama3 = granite();
  llama3["rope_parameters"] = {{"rope_type", "llama3"},
                               {"factor", 8.0},
                               {"original_max_position_embeddings", 1024},
                               {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0}};
  expect_refused(llama3, {{"rope_parameters/factor", 1e30},
                          {"rope_parameters/low_freq_factor", 0.0},
                          {"rope_parameters/high_freq_factor", 1e30},
                          {"rope_parameters/rope_theta", 0.5},
                          {"rope_parameters/partial_rotary_factor", 1.5}});
  for (const char* type : {"linear", "dynamic"}) {
    Json j = granite();
    j["rope_scaling"] = {{"rope_type", type}, {"factor", 2.0}};
    expect_refused(j, {{"rope_scaling/factor", 1e30}, {"rope_scaling/factor", -2.0}});
  }
}

TEST(ConfigRanges, ScalarsOfStatesAndLogits) {
  std::vector<Wrong> wrong;
  for (const char* key :
       {"residual_multiplier", "attention_multiplier", "embedding_multiplier", "logits_scaling"}) {
    for (const double v : {0.0, -1.0, 1e30, 1e-30}) wrong.push_back({key, v});
  }
  expect_refused(granite(), wrong);
}

// Values of the classes, which are those of large models, in files of small ones.
TEST(ConfigRanges, DefaultsOfAbsentKeys) {
  struct Case {
    const char* architecture;
    Json keys;
    const char *key, *wanted, *got;
  };
  Json base = granite();
  base["num_attention_heads"] = 8;
  base["num_hidden_layers"] = 4;
  const std::initializer_list<Case> cases = {
      {"MixtralForCausalLM", {{"num_local_experts", 1}}, "num_experts_per_tok", "1 to 1", "2"},
      {"MiniMaxM2ForCausalLM", {{"num_local_experts", 4}}, "num_experts_per_tok", "1 to 4", "8"},
      {"Qwen3NextForCausalLM", {{"num_experts", 8}}, "num_experts_per_tok", "1 to 8", "10"},
      {"Qwen3_5MoeForCausalLM", {{"num_experts", 4}}, "num_experts_per_tok", "1 to 4", "8"},
      {"GraniteForCausalLM", {{"hidden_size", 16384}}, "head_dim", "1 to 1024", "2048"}};
  for (const auto& [architecture, keys, key, wanted, got] : cases) {
    Json j = base;
    j["architectures"] = {architecture};
    j.update(keys);
    const std::string told = std::string("config.json: ") + key + ": wanted an integer from " +
                             wanted + ", got " + got +
                             ", the default of an absent key; --override " + key + "=VALUE";
    EXPECT_THAT(refusal(j), HasSubstr(told));
    j[key] = nullptr;
    EXPECT_THAT(refusal(j), HasSubstr(told));
    j[key] = key == std::string("head_dim") ? 64 : 1;
    EXPECT_EQ(refusal(j), "accepted") << architecture;
  }
  Json groups = without(deepseek_v3(), {"topk_group"});
  groups["n_group"] = 2;
  EXPECT_THAT(refusal(groups), HasSubstr("topk_group: wanted an integer from 1 to 2, got 4, the "
                                         "default of an absent key"));
  groups["topk_group"] = 2;
  EXPECT_EQ(refusal(groups), "accepted");
  Json few = without(deepseek_v3(), {"n_group", "topk_group"});
  few["n_routed_experts"] = 4;
  few["num_experts_per_tok"] = 2;
  EXPECT_THAT(refusal(few),
              HasSubstr("n_group: wanted an integer from 1 to 4, got 8, the default"));
}

TEST(ConfigRanges, ScaledRopeNeedsItsFactor) {
  for (const char* type : {"yarn", "deepseek_yarn", "linear", "dynamic"}) {
    Json j = granite();
    j["rope_scaling"] = {{"rope_type", type}};
    EXPECT_THAT(refusal(j), HasSubstr("factor: wanted a finite number, got nothing")) << type;
    j["rope_scaling"]["original_max_position_embeddings"] = 1024;
    EXPECT_THAT(refusal(j), HasSubstr("factor: wanted a finite number, got nothing")) << type;
    j["rope_scaling"]["factor"] = 4.0;
    EXPECT_EQ(refusal(j), "accepted") << type;
  }
  for (Json j : {deepseek_v3(), gpt_oss()}) {
    j["rope_scaling"].erase("factor");
    EXPECT_THAT(refusal(j), HasSubstr("factor: wanted a finite number, got nothing"));
  }
}

// transformers' Llama4TextAttention norms q and k after RoPE.
TEST(ConfigRanges, RopeTypesOfLlama4) {
  Json j = granite();
  j["architectures"] = {"Llama4ForCausalLM"};
  j["num_attention_heads"] = 8;
  for (const char* object : {"rope_scaling", "rope_parameters"}) {
    Json other = j;
    for (const char* type : {"yarn", "linear", "dynamic", "longrope", "proportional"}) {
      other[object] = {{"rope_type", type}, {"factor", 4.0}};
      EXPECT_THAT(refusal(other),
                  HasSubstr(std::string("rope_type: wanted default or llama3, which "
                                        "Llama 4 has, got \"") +
                            type + "\"; --rope-scaling"));
    }
    other[object] = {{"type", "yarn"}, {"factor", 4.0}};
    EXPECT_THAT(refusal(other), HasSubstr(": type: wanted default or llama3"));
    other[object] = {{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"original_max_position_embeddings", 1024},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0}};
    EXPECT_EQ(refusal(other), "accepted");
    other[object] = {{"rope_type", "default"}};
    EXPECT_EQ(refusal(other), "accepted");
  }
  EXPECT_EQ(refusal(j), "accepted");
}

TEST(ConfigRanges, Ids) {
  Json j = qwen3();
  expect_refused(j, {{"bos_token_id", 151936},
                     {"bos_token_id", -1},
                     {"bos_token_id", "1"},
                     {"bos_token_id", 1.5},
                     {"eos_token_id", 151936},
                     {"eos_token_id", -1},
                     {"eos_token_id", Json::array()}});
  j["bos_token_id"] = {1, 2};
  EXPECT_THAT(refusal(j), HasSubstr("bos_token_id: wanted one id, got 2"));
  const auto said = [](const std::string& generation) {
    const auto config = parse_model_config(qwen3().dump(), generation);
    return config ? "accepted" : config.error().message();
  };
  for (const char* bad :
       {R"({"eos_token_id": ["</s>"]})", R"({"eos_token_id": [1, -1]})",
        R"({"eos_token_id": "151645"})", R"({"eos_token_id": []})", R"({"eos_token_id": 1e3})",
        R"({"eos_token_id": {}})", R"({"bos_token_id": 151936})"}) {
    EXPECT_THAT(said(bad), AllOf(HasSubstr("generation_config.json: "),
                                 HasSubstr("wanted ids below vocab_size"), HasSubstr("--override")))
        << bad;
  }
  EXPECT_EQ(said(R"({"eos_token_id": null, "bos_token_id": null})"), "accepted");
  // Nothing is padded, and no other key of requests that Lathe has not is read.
  for (const char* unread : {"null", "-1", "151936", "151937", "-2", "[1]", R"("")", "1e300"}) {
    for (const char* key : {"pad_token_id", "decoder_start_token_id", "max_length", "num_beams"}) {
      const std::string text = "{\"" + std::string(key) + "\": " + unread + "}";
      EXPECT_EQ(said(text), "accepted") << text;
    }
    j = qwen3();
    j["pad_token_id"] = Json::parse(unread);
    EXPECT_EQ(refusal(j), "accepted") << unread;
  }
  EXPECT_EQ(said(R"({"bos_token_id": [7]})"), "accepted");
  EXPECT_THAT(said(R"({"bos_token_id": [7, 8]})"), HasSubstr("bos_token_id: wanted one id, got 2"));
  EXPECT_THAT(said(R"({"bos_token_id": []})"), HasSubstr("bos_token_id: wanted ids below"));
  for (const char* bad : {"[]", "7", "null", "\"a\"", "{", " "}) {
    EXPECT_THAT(said(bad), HasSubstr("generation_config.json")) << bad;
  }
  for (const char* bad :
       {R"({"top_k": -5})", R"({"top_k": 2.5})", R"({"top_k": "50"})", R"({"temperature": [1]})",
        R"({"do_sample": "yes"})", R"({"top_p": 2})", R"({"repetition_penalty": -1})"}) {
    EXPECT_THAT(said(bad), AllOf(HasSubstr("generation_config.json: "), HasSubstr("wanted "),
                                 HasSubstr("got ")))
        << bad;
  }
}

TEST(ConfigRanges, Sizes) {
  expect_refused(deepseek_v3(), {{"vocab_size", 0},
                                 {"vocab_size", std::numeric_limits<std::uint64_t>::max()},
                                 {"hidden_size", -1},
                                 {"num_hidden_layers", 4097},
                                 {"moe_intermediate_size", 1 << 28},
                                 {"n_routed_experts", 1e3},
                                 {"max_position_embeddings", 0}});
  Json many = deepseek_v3();
  many["num_hidden_layers"] = 4096;
  EXPECT_THAT(refusal(many), HasSubstr("num_hidden_layers: wanted at most 262144 experts"));
  Json wide = qwen3();
  wide["hidden_size"] = 1 << 20;
  wide["intermediate_size"] = 1 << 24;
  wide["num_hidden_layers"] = 4096;
  EXPECT_THAT(refusal(wide), HasSubstr("hidden_size: wanted at most 10^15 weights"));
}

}  // namespace
}  // namespace lathe
