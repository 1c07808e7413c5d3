// RoPE of configurations against transformers (tests/data/rope.jsonl,
// tools/fixtures/make_rope_fixtures.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "model/config/config_rope.h"
#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::HasSubstr;

TEST(ConfigRope, FrequenciesAreTransformers) {
  std::ifstream file(LATHE_TEST_DATA "/rope.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    Json row = Json::parse(line);
    row["config"]["architectures"] = {"Phi3ForCausalLM"};  // whose class reads all of the keys
    const RopeConfig rope = parsed(row["config"]).groups.front().rope;
    const auto wanted = row["frequencies"].get<std::vector<double>>();
    const auto got = rope_frequencies(rope, row["positions"].get<std::int64_t>());
    ASSERT_EQ(got.size(), wanted.size()) << row["config"];
    for (std::size_t i = 0; i < got.size(); ++i) {
      // Theirs are f32, of a power in f32.
      EXPECT_NEAR(got[i], wanted[i], 3e-6 * wanted[i]) << row["config"] << i;
    }
    EXPECT_NEAR(rope_magnitude(rope), row["magnitude"].get<double>(), 1e-12) << row["config"];
  }
  EXPECT_EQ(cases, 11);
}

// vLLM's _get_and_verify_max_len(): the original context times the factor.
TEST(ConfigRope, ScalingExtendsTheContext) {
  Json j = qwen3();
  j["max_position_embeddings"] = 32768;
  j["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  EXPECT_EQ(parsed(j).max_context, 131072);
  j["rope_scaling"]["original_max_position_embeddings"] = 16384;
  EXPECT_EQ(parsed(j).max_context, 65536);
  j["rope_scaling"]["original_max_position_embeddings"] = 4096;  // what the file says is more
  EXPECT_EQ(parsed(j).max_context, 32768);
  j["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.5}};
  EXPECT_EQ(parsed(j).max_context, 81920);
  j["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(parsed(j).max_context, 32768);
  j["rope_scaling"] = nullptr;
  // Beyond a chunk, dual chunk attention is another model.
  j["max_position_embeddings"] = 1010000;
  j["dual_chunk_attention_config"] = {
      {"chunk_size", 262144}, {"local_size", 8192}, {"original_max_position_embeddings", 262144}};
  EXPECT_EQ(parsed(j).max_context, 262144 - 8192);
}

TEST(ConfigRope, OneValueForAKey) {
  Json j = qwen3();
  j["architectures"] = {"Phi3ForCausalLM"};
  for (const char* object : {"rope_parameters", "rope_scaling"}) {
    Json both = j;
    both.erase("rope_parameters");
    both["rope_theta"] = 5000;
    both[object] = {{"rope_type", "default"}, {"rope_theta", 5000}};
    EXPECT_EQ(parsed(both).groups.front().rope.theta, 5000);
    both[object]["rope_theta"] = 1e6;
    EXPECT_THAT(refusal(both), HasSubstr("rope_theta: wanted 1000000, as the object of the RoPE "
                                         "says, or no rope_theta, got 5000"));
    both["rope_theta"] = 1e6;
    both["partial_rotary_factor"] = 0.5;
    both[object]["partial_rotary_factor"] = 1.0;
    EXPECT_THAT(refusal(both), HasSubstr("partial_rotary_factor: wanted 1, as the object"));
  }
}

// transformers 5.24 gives them rope_type default, which ignores the factors.
TEST(ConfigRope, FactorsNeedAType) {
  Json j = qwen3();
  for (const char* object : {"rope_scaling", "rope_parameters"}) {
    Json scaled = j;
    scaled[object] = {{"rope_theta", 1e6}, {"factor", 4.0}};
    EXPECT_EQ(refusal(scaled), std::string("config.json: ") + object +
                                   ": rope_type: wanted a type, as factor is given, got nothing; "
                                   "--rope-scaling JSON gives one");
    scaled[object] = {{"rope_type", nullptr}, {"short_factor", {1.0}}};
    EXPECT_THAT(refusal(scaled), HasSubstr("rope_type: wanted a type, as short_factor is given"));
    scaled[object]["rope_type"] = "default";
    EXPECT_EQ(refusal(scaled), "accepted");
    scaled[object] = {{"rope_theta", 1e6},
                      {"partial_rotary_factor", 0.5},
                      {"mrope_section", {16, 24, 24}},
                      {"mrope_interleaved", true},
                      {"factor", nullptr}};
    scaled["architectures"] = {"Phi3ForCausalLM"};
    EXPECT_EQ(parsed(scaled).groups.front().rope.dim, 64) << object;
  }
  Json gemma = gemma3();
  gemma.erase("rope_scaling");
  gemma["rope_parameters"] = {{"full_attention", {{"rope_theta", 1e6}, {"factor", 8.0}}},
                              {"sliding_attention", {{"rope_theta", 1e4}}}};
  EXPECT_THAT(refusal(gemma), HasSubstr("rope_parameters: full_attention: rope_type: wanted a"));
  gemma["rope_parameters"]["full_attention"].erase("factor");
  EXPECT_EQ(refusal(gemma), "accepted");
}

TEST(ConfigRope, APartOfAHeadRotates) {
  Json j = qwen3();  // heads of 128
  j["architectures"] = {"Phi3ForCausalLM"};
  j["partial_rotary_factor"] = 0.25;
  EXPECT_EQ(parsed(j).groups.front().rope.dim, 32);
  EXPECT_EQ(parsed(j).attention(0).head_dim, 128);
  j["rotary_dim"] = 32;
  EXPECT_EQ(parsed(j).groups.front().rope.dim, 32);
  j["rotary_dim"] = 64;
  EXPECT_THAT(refusal(j),
              HasSubstr("rotary_dim: wanted 32, as partial_rotary_factor says, got 64"));
  j.erase("partial_rotary_factor");
  EXPECT_EQ(parsed(j).groups.front().rope.dim, 64);
  j["rotary_dim"] = 256;
  EXPECT_THAT(refusal(j), HasSubstr("rotary_dim: wanted an integer from 1 to 128"));
  j["rotary_dim"] = 40;
  EXPECT_THAT(refusal(j), HasSubstr("a rotary part of a multiple of 16 elements, got 40"));
  j.erase("rotary_dim");
  j["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.0}};
  EXPECT_THAT(refusal(j),
              HasSubstr("partial_rotary_factor: wanted a finite number from 1e-06 to 1"));
  Json latent = deepseek_v3();
  latent["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(refusal(latent), HasSubstr("every element of a head's rotary part rotates"));
}

// transformers 5.24: the modeling files of Llama, Qwen 2 and 3, Mistral, gpt-oss, Gemma 3 and
// others do not have the words partial_rotary_factor and rotary_dim. ROPE_INIT_FUNCTIONS of other
// types than default has the first, and the shapes do not fit then.
TEST(ConfigRope, WholeHeadsRotateWhereTheClassReadsNoShare) {
  for (const char* name : {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                           "MistralForCausalLM", "SmolLM3ForCausalLM"}) {
    Json j = qwen3();
    j["architectures"] = {name};
    j["partial_rotary_factor"] = 0.5;
    j["rotary_dim"] = 32;
    EXPECT_EQ(parsed(j).groups.front().rope.dim, 128) << name;
    j["rope_parameters"] = {
        {"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}};
    EXPECT_EQ(parsed(j).groups.front().rope.dim, 128) << name;
    j["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 1e6}};
    EXPECT_THAT(refusal(j), HasSubstr("partial_rotary_factor: wanted 1: whole heads of this "
                                      "architecture rotate, got 0.5"))
        << name;
  }
  // Nobody would follow the flag.
  ConfigOverrides flag;
  flag.values = {"partial_rotary_factor=0.5"};
  const auto unread = parse_model_config(qwen3().dump(), {}, flag);
  ASSERT_FALSE(unread);
  EXPECT_THAT(unread.error().message(), HasSubstr("--override"));
  Json oss = gpt_oss();  // YaRN, also where the file says nothing
  oss["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(refusal(oss), HasSubstr("partial_rotary_factor: wanted 1: whole heads"));
  oss.erase("rope_scaling");
  oss.erase("rope_parameters");
  EXPECT_THAT(refusal(oss), HasSubstr("partial_rotary_factor: wanted 1: whole heads"));
  oss["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 150000.0}};
  for (const LayerGroupConfig& g : parsed(oss).groups) EXPECT_EQ(g.rope.dim, 64);
  Json gemma = gemma3();  // both kinds of layers
  gemma["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(refusal(gemma), HasSubstr("partial_rotary_factor: wanted 1: whole heads"));
  gemma.erase("rope_scaling");
  for (const LayerGroupConfig& g : parsed(gemma).groups) EXPECT_EQ(g.rope.dim, 256);
}

TEST(ConfigRope, RefusesFactorsByName) {
  Json j = qwen3();
  const Json ones(std::vector<double>(64, 1.0));
  j["rope_scaling"] = {{"rope_type", "longrope"}, {"short_factor", ones}};
  EXPECT_THAT(refusal(j), HasSubstr("long_factor: wanted a list of factors, got nothing"));
  j["rope_scaling"]["long_factor"] = {1.0, "2"};
  EXPECT_THAT(refusal(j),
              HasSubstr("long_factor: wanted a list of numbers, each a finite number from 1e-06"));
  j["rope_scaling"]["long_factor"] = {1.0, 2.0};
  EXPECT_THAT(refusal(j), HasSubstr("long_factor 64 factors, got 2"));
  j["rope_scaling"]["long_factor"] = ones;
  j["rope_scaling"]["long_factor"][3] = 0.0;
  EXPECT_THAT(refusal(j),
              HasSubstr("long_factor: wanted a list of numbers, each a finite number from 1e-06"));
  j["rope_scaling"]["long_factor"] = ones;
  EXPECT_EQ(refusal(j), "accepted");
  j["rope_scaling"] = {{"rope_type", "dynamic"}};
  EXPECT_THAT(refusal(j), HasSubstr("factor: wanted a finite number, got nothing"));
  j["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 0.5}};
  EXPECT_THAT(refusal(j), HasSubstr("factor: wanted a finite number from 1 to 4096, got 0.5"));
  j["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"attention_factor", 0.0}};
  EXPECT_THAT(refusal(j),
              HasSubstr("attention_factor: wanted a finite number from 1e-06 to 1000000, got 0.0"));
}

}  // namespace
}  // namespace lathe
