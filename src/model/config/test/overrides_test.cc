#include "model/config/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::HasSubstr;

Result<ModelConfig> overridden(const Json& j, const ConfigOverrides& overrides,
                               const Json& generation = Json::object()) {
  return parse_model_config(j.dump(), generation.dump(), overrides);
}

std::string refused(const Json& j, const ConfigOverrides& overrides) {
  const auto config = overridden(j, overrides);
  return config ? "accepted" : config.error().message();
}

TEST(ConfigOverrides, SetKeysOfTheTextModel) {
  const auto c = overridden(
      qwen3(),
      {.values = {"max_position_embeddings=1000", "rms_norm_eps=1e-3", "eos_token_id=[5, 6]"}},
      {{"eos_token_id", 7}, {"temperature", 0.5}});
  ASSERT_TRUE(c.ok()) << c.error().message();
  EXPECT_EQ(c->max_context, 1000);
  EXPECT_EQ(c->norm_eps, 1e-3f);
  EXPECT_THAT(c->eos, testing::ElementsAre(5, 6));  // generation_config.json's gives way
  EXPECT_EQ(c->generation.temperature, 0.5f);
  Json wrapped = {{"architectures", {"LlavaForConditionalGeneration"}}, {"text_config", qwen3()}};
  wrapped["text_config"]["model_type"] = "qwen3";
  const auto text = overridden(wrapped, {.values = {"max_position_embeddings=1000"}});
  ASSERT_TRUE(text.ok()) << text.error().message();
  EXPECT_EQ(text->max_context, 1000);
}

TEST(ConfigOverrides, RopeScalingReplacesBothSpellings) {
  const ConfigOverrides yarn{.rope_scaling = R"({"rope_type": "yarn", "factor": 2})"};
  Json older = qwen3(), newer = qwen3();
  older["rope_theta"] = 5000;
  older["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 3.0}};
  newer.erase("rope_theta");
  newer["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 3.0}, {"rope_theta", 5000}};
  for (const Json& j : {older, newer}) {
    const auto c = overridden(j, yarn);
    ASSERT_TRUE(c.ok()) << c.error().message();
    const RopeConfig& rope = c->groups.front().rope;
    EXPECT_EQ(rope.theta, 5000);
    EXPECT_EQ(rope.linear_factor, 1);
    ASSERT_TRUE(rope.yarn);
    EXPECT_EQ(c->max_context, 2 * j["max_position_embeddings"].get<int>());
    EXPECT_FALSE(overridden(j, {.rope_scaling = "null"})->groups.front().rope.yarn);
  }
  // rope_theta is read in rope_parameters first.
  for (const Json& j : {older, newer}) {
    const auto c = overridden(j, {.values = {"rope_theta=7000"}});
    ASSERT_TRUE(c.ok()) << c.error().message();
    EXPECT_EQ(c->groups.front().rope.theta, 7000);
    EXPECT_EQ(c->groups.front().rope.linear_factor, 3);
  }
  Json two = gemma3();
  two["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
  EXPECT_THAT(refused(two, yarn), HasSubstr("--rope-scaling: wanted a model with one RoPE, got one "
                                            "with several: \"full_attention\""));
  two["rope_parameters"]["full_attention"]["rope_theta"] = 1e6;
  EXPECT_THAT(refused(two, {.values = {"rope_theta=7000"}}),
              HasSubstr("--override: wanted a model with one RoPE"));
  for (const char* bad : {"[1]", "3"}) {
    EXPECT_THAT(refused(older, {.rope_scaling = bad}),
                HasSubstr("--rope-scaling: wanted a JSON object, or null, got"));
  }
  for (const char* bad : {"yarn", "{"}) {
    EXPECT_THAT(refused(older, {.rope_scaling = bad}),
                HasSubstr("--rope-scaling: wanted valid JSON, got"));
  }
  for (const auto& [scaling, key] :
       {std::pair{R"({"rope_type": "yarn", "factor": 2, "factr": 4})", "\"factr\""},
        std::pair{R"({"rope_type": "linear", "factor": 4, "beta_fast": 2})", "\"beta_fast\""},
        std::pair{R"({"rope_type": "linear", "type": "yarn", "factor": 4})", "\"type\""}}) {
    EXPECT_THAT(
        refused(older, {.rope_scaling = scaling}),
        HasSubstr(std::string("--rope-scaling: wanted keys that are read for its rope_type, got ") +
                  key));
  }
  EXPECT_EQ(refused(older, {.rope_scaling = R"({"rope_type": "spiral"})"}),
            "--rope-scaling: rope_type: wanted default, linear, dynamic, llama3, yarn, longrope "
            "or proportional, got \"spiral\"; give another value, or leave the flag out");
  EXPECT_EQ(refused(older, {.rope_scaling = R"({"factor": 4})"}),
            "--rope-scaling: rope_type: wanted a type, as factor is given, got nothing; give "
            "another value, or leave the flag out");
  // Qwen 3's class reads no share.
  EXPECT_THAT(
      refused(older, {.rope_scaling = R"({"rope_type": "default", "partial_rotary_factor": 0.5})"}),
      HasSubstr("keys that are read for its rope_type, got \"partial_rotary_factor\""));
  EXPECT_EQ(refused(older, {.rope_scaling = R"({"rope_type": "yarn"})"}),
            "--rope-scaling: factor: wanted a finite number, got nothing; give another value, or "
            "leave the flag out");
  EXPECT_THAT(
      refused(older, {.rope_scaling = R"({"factor": 2, "rope_type": "yarn", "factor": 4})"}),
      HasSubstr("--rope-scaling: wanted unique names, got \"factor\" twice"));
}

// As if the file said it.
TEST(ConfigOverrides, ADottedKeyChangesOneKeyOfAnObject) {
  const auto ropes = [](const Json& j, std::vector<std::string> values) {
    const auto c = overridden(j, {.values = std::move(values)});
    EXPECT_TRUE(c.ok()) << c.error().message();
    std::vector<RopeConfig> out;
    for (const auto& group : c->groups) out.push_back(group.rope);
    return out;
  };
  const auto in_file = [&](const Json& j) { return ropes(j, {}); };
  Json j = qwen3();  // with rope_theta, as models/tiny-gqa
  j["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 1e6}};
  j["rope_theta"] = 1e6;
  Json wanted = j;
  wanted["rope_parameters"]["rope_theta"] = wanted["rope_theta"] = 5;
  EXPECT_EQ(ropes(j, {"rope_parameters.rope_theta=5"}), in_file(wanted));
  EXPECT_EQ(ropes(j, {R"(rope_parameters={"rope_type": "linear", "factor": 3, "rope_theta": 5})",
                      "rope_parameters.factor=4"}),
            in_file(wanted));
  wanted = j;
  wanted["rope_parameters"] = {{"rope_type", "dynamic"}, {"factor", 64.0}};
  EXPECT_EQ(ropes(j, {R"(rope_parameters.rope_type="dynamic")", "rope_parameters.factor=64"}),
            in_file(wanted));
  j.erase("rope_parameters");  // the object is made
  EXPECT_EQ(ropes(j, {R"(rope_scaling.rope_type="dynamic")", "rope_scaling.factor=64"}),
            in_file(wanted));
  Json gemma = gemma3();
  gemma.erase("rope_scaling");
  gemma["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                              {"sliding_attention", {{"rope_theta", 1e4}}}};
  wanted = gemma;
  wanted["rope_parameters"]["full_attention"]["rope_theta"] = 9;
  EXPECT_EQ(ropes(gemma, {"rope_parameters.full_attention.rope_theta=9"}), in_file(wanted));

  const auto with = [&](std::vector<std::string> values) {
    return refused(gemma, {.values = std::move(values)});
  };
  EXPECT_THAT(with({"rope_parameters.full_attention.factor=4"}),
              HasSubstr("--override: wanted a key that is read for this model, got "
                        "\"rope_parameters.full_attention.factor\""));
  EXPECT_THAT(with({R"(rope_parameters.full_attention={"rope_theta": 1e6, "thta": 2})"}),
              HasSubstr("got \"rope_parameters.full_attention.thta\""));
  EXPECT_EQ(with({"rope_parameters.full_attention.rope_theta=true"}),
            "--override rope_parameters.full_attention.rope_theta: wanted a finite number, got "
            "true; give another value, or leave the flag out");
  EXPECT_THAT(with({R"(rope_parameters.full_attention={"rope_theta": true})"}),
              HasSubstr("--override rope_parameters.full_attention: rope_theta: wanted a finite"));
  EXPECT_THAT(with({"vocab_size.a=1"}),
              HasSubstr("--override vocab_size.a: wanted an object in \"vocab_size\", got"));
  EXPECT_EQ(with({"text_config.rope_theta=5"}),
            "--override: wanted a key other than those that say what the checkpoint is, got "
            "\"text_config.rope_theta\"; --override rope_theta=JSON, as keys are the text model's");
  EXPECT_THAT(with({"quantization_config.bits=4"}), HasSubstr("what the checkpoint is"));
  EXPECT_THAT(with({"rope_parameters.full_attention.rope_theta=9", "rope_parameters=null"}),
              HasSubstr("--override: wanted an object before its members, got "
                        "\"rope_parameters\" after one of them"));
  for (const char* dots : {".=1", "a.=1", ".a=1", "rope_parameters..a=1"}) {
    EXPECT_THAT(with({dots}), HasSubstr("a key that is read for this model")) << dots;
  }
  // Two flags that disagree.
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_THAT(refused(j, {.values = {"rope_theta=5", "rope_parameters.rope_theta=6"}}),
              HasSubstr("--override rope_theta: wanted 6, as the object of the RoPE says"));
}

TEST(ConfigOverrides, RefuseByKey) {
  const auto with = [](const char* value) { return refused(qwen3(), {.values = {value}}); };
  EXPECT_THAT(with("max_position_embeddings"), HasSubstr("--override: wanted KEY=JSON, got"));
  EXPECT_THAT(with("=3"), HasSubstr("--override: wanted KEY=JSON"));
  EXPECT_THAT(with("hidden_act=silu"),
              HasSubstr("--override hidden_act: wanted valid JSON, got something else at byte 1 of "
                        "4; a text needs double quotes"));
  for (const char* key : {"architectures", "model_type", "quantization_config", "text_config"}) {
    EXPECT_THAT(with((std::string(key) + "=null").c_str()), HasSubstr(key)) << key;
  }
  EXPECT_THAT(with("max_positions=3"),
              HasSubstr("--override: wanted a key that is read for this model, got "
                        "\"max_positions\""));
  EXPECT_THAT(with("n_group=3"), HasSubstr("read for this model"));
  EXPECT_THAT(with("max_position_embeddings=\"3\""),
              HasSubstr("--override max_position_embeddings: wanted an integer"));
  EXPECT_THAT(with(R"(rope_scaling={"rope_type": "yarn", "factor": 4, "factor": 2})"),
              HasSubstr("--override rope_scaling: wanted unique names, got \"factor\" twice"));
  EXPECT_EQ(with(R"(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": "2"})"),
            "--override rope_parameters: factor: wanted a finite number, got \"2\"; give another "
            "value, or leave the flag out");
  EXPECT_THAT(with("rms_norm_eps=1e999"), HasSubstr("--override rms_norm_eps: wanted a number"));
  Json wrapped = {{"architectures", {"LlavaForConditionalGeneration"}}, {"text_config", qwen3()}};
  wrapped["text_config"]["model_type"] = "qwen3";
  EXPECT_THAT(refused(wrapped, {.values = {"rms_norm_eps=true"}}),
              HasSubstr("--override rms_norm_eps: wanted a finite number, got true"));
}

}  // namespace
}  // namespace lathe
