// Quantised matrices that are almost in a format, made from fixtures by changing header text or
// bytes.
#include <filesystem>
#include <fstream>

#include "io/files/read_file.h"
#include "model/test/generated_checkpoint.h"
#include "model/test/test_util.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class AlmostAFormat : public testing::Test {
 protected:
  AlmostAFormat() : made_(fixture_dir("formats_int4")) { good_ = bytes_ = *read_file(file()); }
  fs::path file() const { return fs::path(made_.dir()) / "model.safetensors"; }

  /// Replaces the first `from` after `after` by `to`, padded with spaces.
  void replace(const std::string& after, const std::string& from, std::string to) {
    ASSERT_LE(to.size(), from.size());
    to.resize(from.size(), ' ');
    const std::size_t begin = bytes_.find(after);
    ASSERT_NE(begin, std::string::npos) << after;
    const std::size_t at = bytes_.find(from, begin);
    ASSERT_TRUE(after.empty() || at < begin + 100 + after.size()) << from;
    bytes_.replace(at, from.size(), to);
  }
  /// The tensor's first bytes.
  void overwrite(const std::string& tensor, const std::string& with) {
    const auto header = parse_safetensors_header(
        std::as_bytes(std::span<const char>(bytes_.data(), bytes_.size())));
    ASSERT_TRUE(header.ok());
    for (const SafetensorsEntry& t : header->tensors) {
      if (t.name == tensor) bytes_.replace(static_cast<std::size_t>(t.begin), with.size(), with);
    }
  }
  std::string load() {
    std::ofstream(file(), std::ios::binary) << bytes_;
    bytes_ = good_;
    const auto model = load_model(made_.dir(), {});
    return model ? "loaded" : model.error().message();
  }

  GeneratedCheckpoint made_;
  std::string good_, bytes_;
};

TEST_F(AlmostAFormat, NamesTheTensorWhatIsWantedAndTheFormats) {
  EXPECT_EQ(load(), "loaded");
  replace("layers.0.self_attn.v_proj.scales", "[4,128]", "[8,64]");
  EXPECT_THAT(load(), AllOf(HasSubstr("1 of another shape or dtype: "
                                      "model.layers.0.self_attn.v_proj.scales F16 [8, 64] (wanted "
                                      "BF16 or F16 [512 / group, 128], groups of 32, 64 or 128)"),
                            HasSubstr("formats of weights: bf16")));
  replace("layers.0.self_attn.v_proj.qweight", "[512,16]", "[256,32]");
  EXPECT_THAT(load(),
              HasSubstr("v_proj.qweight I32 [256, 32] (wanted I32 [64, 128] of int4 (GPTQ), or "
                        "I32 [512, 16] of int4 (AWQ))"));
  replace("layers.0.self_attn.q_proj.weight_scale", "\"BF16\"", "\"I16\"");
  EXPECT_THAT(load(), HasSubstr("q_proj.weight_scale I16 [512, 16] (wanted BF16 or F16 [512, 512 / "
                                "group], groups of 32, 64 or 128)"));
}

TEST_F(AlmostAFormat, NamesWhatIsMissing) {
  replace("", "layers.0.self_attn.v_proj.qzeros", "layers.0.self_attn.v_proj.qzerOs");
  EXPECT_THAT(load(), AllOf(HasSubstr("1 missing: model.layers.0.self_attn.v_proj.qzeros"),
                            HasSubstr("1 unexpected: model.layers.0.self_attn.v_proj.qzerOs")));
  replace("", "layers.0.self_attn.q_proj.weight_scale", "layers.0.self_attn.q_proj.weight_scalE");
  EXPECT_THAT(load(), HasSubstr("1 missing: model.layers.0.self_attn.q_proj.weight_scale"));
}

// Of the formats that the checkpoint has elsewhere.
TEST_F(AlmostAFormat, NamesThePackedTensorThatIsMissing) {
  replace("", "layers.0.self_attn.v_proj.qweight", "layers.0.self_attn.v_proj.qweighT");
  EXPECT_THAT(load(), HasSubstr("1 missing: model.layers.0.self_attn.v_proj.qweight; 1 unexpected: "
                                "model.layers.0.self_attn.v_proj.qweighT;"));
  replace("", "layers.0.self_attn.q_proj.weight_packed", "layers.0.self_attn.q_proj.weight_packeD");
  EXPECT_THAT(load(), HasSubstr("1 missing: model.layers.0.self_attn.q_proj.weight_packed; 1 "
                                "unexpected: model.layers.0.self_attn.q_proj.weight_packeD;"));
}

TEST_F(AlmostAFormat, NeedsTheOrderThatTheConfigurationNames) {
  replace("", "layers.0.mlp.gate_proj.g_idx", "layers.0.mlp.gate_proj.g_idX");
  EXPECT_THAT(load(), HasSubstr("1 missing: model.layers.0.mlp.gate_proj.g_idx"));
  const auto configure = [&](const char* order) {
    auto config = nlohmann::json::parse(*read_file(fs::path(made_.dir()) / "config.json"));
    config["quantization_config"] = {
        {"quant_method", "compressed-tensors"},
        {"config_groups",
         {{"group_0",
           {{"weights",
             {{"num_bits", 4}, {"type", "int"}, {"group_size", 32}, {"actorder", order}}}}}}}};
    std::ofstream(fs::path(made_.dir()) / "config.json") << config;
  };
  configure("weight");
  EXPECT_THAT(load(), testing::Not(HasSubstr("weight_g_idx")));
  configure("group");
  EXPECT_THAT(load(), AllOf(HasSubstr("missing: "), HasSubstr("q_proj.weight_g_idx")));
}

TEST_F(AlmostAFormat, ReadsContents) {
  overwrite("model.layers.0.mlp.gate_proj.g_idx", std::string(1, '\1') + std::string(3, '\0'));
  EXPECT_THAT(load(), HasSubstr("gate_proj.g_idx I32 [512] (wanted 128 columns of each of 4"));
  // As compressed_tensors.quantization.lifecycle.forward of version 0.12.2: in order.
  overwrite("model.layers.0.mlp.down_proj.weight_g_idx", "\xff\xff\xff\xff");
  EXPECT_EQ(load(), "loaded");
  overwrite("model.layers.0.self_attn.q_proj.weight_scale", "\xc0\x7f");  // NaN
  EXPECT_THAT(load(), AllOf(HasSubstr("layers.0.self_attn.q_proj.weight_scale"),
                            HasSubstr("scales below 2^119")));
}

}  // namespace
}  // namespace lathe
