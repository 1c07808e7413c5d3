// quantization_config of every method: what is read of it, and what is refused by its name.
#include "model/config/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config/test/config_test_util.h"

namespace lathe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Json quantised(const Json& config) {
  Json j = qwen3();
  j["quantization_config"] = config;
  return j;
}

Json compressed(const Json& weights) {
  return quantised({{"quant_method", "compressed-tensors"},
                    {"config_groups", {{"group_0", {{"weights", weights}}}}}});
}

TEST(QuantizationConfig, MethodsGiveFormats) {
  struct Case {
    Json config;
    Quantization format;
  };
  const std::vector<Case> cases = {
      {quantised({{"quant_method", "fp8"}}), Quantization::fp8_rows},
      {quantised({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}),
       Quantization::fp8_blocks},
      {quantised({{"quant_method", "fbgemm_fp8"}}), Quantization::fp8_rows},
      {compressed({{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}),
       Quantization::fp8_rows},
      {compressed({{"num_bits", 8},
                   {"type", "float"},
                   {"strategy", "block"},
                   {"block_structure", {128, 128}}}),
       Quantization::fp8_blocks},
      {compressed({{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}}),
       Quantization::int4},
      {compressed({{"num_bits", 4}, {"type", "float"}, {"group_size", 16}}), Quantization::nvfp4},
      {compressed({{"num_bits", 4}, {"type", "float"}, {"group_size", 32}}), Quantization::mxfp4},
      {quantised({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}), Quantization::fp8_rows},
      {quantised({{"quant_algo", "FP8"}, {"producer", {{"name", "modelopt"}}}}),
       Quantization::fp8_rows},
      {quantised({{"quant_method", "modelopt"}, {"quantization", {{"quant_algo", "NVFP4"}}}}),
       Quantization::nvfp4},
      {quantised({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}}), Quantization::int4},
      {quantised({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}}), Quantization::int4},
      {quantised(
           {{"quant_method", "quark"}, {"global_quant_config", {{"weight", {{"dtype", "fp4"}}}}}}),
       Quantization::mxfp4},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(parsed(c.config).quantization, c.format) << c.config["quantization_config"].dump();
  }
}

TEST(QuantizationConfig, Int4SaysWhatTensorsDoNot) {
  const Json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}};
  EXPECT_FALSE(parsed(quantised(gptq)).int4_zeros);
  EXPECT_FALSE(parsed(quantised(gptq)).gptq_v2);
  Json v2 = gptq;
  v2["checkpoint_format"] = "gptq_v2";
  v2["sym"] = false;
  v2["desc_act"] = true;
  const ModelConfig c = parsed(quantised(v2));
  EXPECT_TRUE(c.gptq_v2 && c.int4_zeros && c.int4_order);
  EXPECT_EQ(c.int4_group, 128);
}

// As compressed_tensors.quantization.QuantizationArgs of version 0.12.2 reads the key.
TEST(QuantizationConfig, OrderOfColumns) {
  const Json weights = {{"num_bits", 4}, {"type", "int"}, {"group_size", 128}};
  const auto with = [&](const Json& order) {
    Json out = weights;
    out["actorder"] = order;
    return out;
  };
  for (const Json& order : {Json("group"), Json("dynamic"), Json("GROUP"), Json(true)}) {
    const ModelConfig c = parsed(compressed(with(order)));
    EXPECT_TRUE(c.int4_order && c.int4_all_ordered) << order;
  }
  for (const Json& order : {Json("weight"), Json("static"), Json(false), Json(nullptr)}) {
    EXPECT_FALSE(parsed(compressed(with(order))).int4_order) << order;
  }
  EXPECT_THAT(refusal(compressed(with("columns"))), HasSubstr("actorder: wanted group, dynamic"));
  Json both = compressed(with("group"));
  both["quantization_config"]["config_groups"]["group_1"] = {{"targets", {"re:.*mlp.*"}},
                                                             {"weights", weights}};
  EXPECT_TRUE(parsed(both).int4_order);
  EXPECT_FALSE(parsed(both).int4_all_ordered);
}

TEST(QuantizationConfig, OthersAreRefusedByName) {
  const auto message = [](const Json& config) { return refusal(quantised(config)); };
  EXPECT_THAT(message({{"quant_method", "bitsandbytes"}}),
              AllOf(HasSubstr("\"bitsandbytes\""), HasSubstr("use a checkpoint in one of"),
                    HasSubstr("NVFP4")));
  EXPECT_THAT(message({{"quant_method", "gptq"}, {"bits", 3}}), HasSubstr("bits: wanted 4, got 3"));
  EXPECT_THAT(message({{"quant_method", "gptq"}, {"bits", 8}}), HasSubstr("bits: wanted 4, got 8"));
  EXPECT_THAT(message({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", -1}}),
              HasSubstr("group_size: wanted 32, 64 or 128, got -1"));
  EXPECT_THAT(message({{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}}),
              HasSubstr("checkpoint_format"));
  EXPECT_THAT(message({{"quant_method", "gptq"}, {"bits", 4}, {"is_marlin_format", true}}),
              HasSubstr("is_marlin_format: wanted false, got true"));
  const Json floats = {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  EXPECT_THAT(message({{"quant_method", "compressed-tensors"},
                       {"format", "pack-quantized"},
                       {"config_groups", {{"group_0", {{"weights", floats}}}}}}),
              HasSubstr("type: wanted int with format pack-quantized, got \"float\""));
  EXPECT_THAT(message({{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv"}}),
              HasSubstr("version: wanted gemm, got \"gemv\""));
  EXPECT_THAT(message({{"quant_method", "modelopt"}, {"quant_algo", "W4A16_AWQ"}}),
              HasSubstr("W4A16_AWQ"));
  EXPECT_THAT(message({{"quant_method", "fp8"}, {"moe_quant_algo", "W4A8"}}),
              HasSubstr("moe_quant_algo"));
  EXPECT_THAT(message({{"quant_method", "fp8"}, {"quant_algo", "MIXED_PRECISION"}}),
              HasSubstr("quant_algo"));
  EXPECT_THAT(message({{"quant_method", "fp8"}, {"weight_block_size", {32, 32}}}),
              HasSubstr("weight_block_size: wanted [128, 128], or null, got [32, 32]"));
  EXPECT_THAT(refusal(compressed({{"num_bits", 8}, {"type", "int"}})),
              HasSubstr("weights: num_bits: wanted 4-bit integers"));
  EXPECT_THAT(refusal(compressed({{"num_bits", 4}, {"type", "int"}, {"group_size", 16}})),
              HasSubstr("group_size: wanted 32, 64 or 128, got 16"));
}

}  // namespace
}  // namespace lathe
