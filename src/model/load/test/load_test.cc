// Checkpoints that do not match their config.json, made from fixtures by replacing header text by
// text of the same length.
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

class BadCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / (std::string("lathe_load_") + test->name());
    fs::remove_all(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  void copy(const std::string& fixture) {
    fs::create_directories(dir_);
    for (const auto& file : fs::directory_iterator(checkpoint_dir(fixture_dir(fixture)))) {
      fs::copy_file(file.path(), dir_ / file.path().filename());
    }
    bytes_ = *read_file(dir_ / "model.safetensors");
  }
  void replace(const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    const std::size_t at = bytes_.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bytes_.replace(at, from.size(), to);
  }
  std::string load() {
    std::ofstream(dir_ / "model.safetensors", std::ios::binary) << bytes_;
    const auto model = load_model(dir_.string(), {});
    return model ? "loaded" : model.error().message();
  }

  fs::path dir_;
  std::string bytes_;
};

TEST_F(BadCheckpoint, ListsEverythingAtOnce) {
  copy("llama");
  EXPECT_EQ(load(), "loaded");
  replace("\"model.norm.weight\"", "\"model.narm.weight\"");
  replace("layers.0.self_attn.q_proj", "layers.0.self_attn.Q_proj");
  // gate_proj is [88, 96].
  const std::size_t gate = bytes_.find("layers.1.mlp.gate_proj.weight");
  ASSERT_NE(gate, std::string::npos);
  const std::size_t shape = bytes_.find("[88,96]", gate);
  ASSERT_LT(shape, gate + 100);
  bytes_.replace(shape, 7, "[96,88]");
  EXPECT_THAT(load(),
              AllOf(HasSubstr("2 missing: "), HasSubstr("model.norm.weight"),
                    HasSubstr("model.layers.0.self_attn.q_proj.weight"),
                    HasSubstr("2 unexpected: "), HasSubstr("model.narm.weight"),
                    HasSubstr("1 of another shape or dtype: model.layers.1.mlp.gate_proj.weight "
                              "[96, 88] (wanted [88, 96])")));
}

// A layer past the configuration's last is a mistake unless it is a draft layer, which has eh_proj.
TEST_F(BadCheckpoint, MoreLayersThanTheConfiguration) {
  copy("deepseek_v3_dense");
  EXPECT_EQ(load(), "loaded");
  std::string config = *read_file(dir_ / "config.json");
  for (const auto& [from, to] :
       {std::pair{"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"},
        std::pair{"\"first_k_dense_replace\": 2", "\"first_k_dense_replace\": 1"}}) {
    const std::size_t at = config.find(from);
    ASSERT_NE(at, std::string::npos);
    config.replace(at, std::string_view(from).size(), to);
  }
  std::ofstream(dir_ / "config.json") << config;
  EXPECT_THAT(load(), AllOf(HasSubstr("unexpected: "), HasSubstr("model.layers.1.")));
  // Add the projection that only draft layers have; names keep their length.
  replace("\"model.layers.1.mlp.down_proj.weight\":", "\"model.layers.1.eh_proj.weight\":      ");
  EXPECT_EQ(load(), "loaded");
}

TEST_F(BadCheckpoint, Truncated) {
  copy("llama");
  bytes_.resize(bytes_.size() - 100);
  EXPECT_THAT(load(), HasSubstr("model.safetensors"));
  bytes_.resize(10);
  EXPECT_THAT(load(), HasSubstr("model.safetensors"));
}

TEST_F(BadCheckpoint, IntegersAreNoWeights) {
  copy("qwen2");
  replace("\"BF16\"", "\"I16\" ");
  EXPECT_THAT(load(), HasSubstr("I16 (wanted F32, BF16 or F16)"));
}

TEST_F(BadCheckpoint, Fp8NeedsItsScalesAndNumbers) {
  copy("deepseek_v3_fp8");
  EXPECT_EQ(load(), "loaded");
  const std::string good = bytes_;
  replace("o_proj.weight_scale_inv", "o_proj.weight_scale_INV");
  EXPECT_THAT(load(),
              AllOf(HasSubstr("o_proj.weight_scale_inv"), HasSubstr("o_proj.weight_scale_INV"),
                    HasSubstr("1 missing"), HasSubstr("1 unexpected")));

  bytes_ = good;
  const auto header =
      parse_safetensors_header(std::as_bytes(std::span<const char>(bytes_.data(), bytes_.size())));
  ASSERT_TRUE(header.ok());
  for (const SafetensorsEntry& t : header->tensors) {
    if (t.dtype == SafetensorsDType::F8_E4M3) {
      bytes_[static_cast<std::size_t>(t.end - 1)] = static_cast<char>(0xff);
      EXPECT_THAT(load(), AllOf(HasSubstr(t.name), HasSubstr("NaN codes")));
      return;
    }
  }
  FAIL() << "no e4m3 tensor";
}

// A gate, a router and an indexer would lose it: exp() and comparisons give numbers.
TEST_F(BadCheckpoint, NanThatWouldReachNoLogitIsRefused) {
  for (const char* fixture : {"deepseek_v32", "qwen3_next", "kimi_linear"}) {
    copy(fixture);
    const auto header = parse_safetensors_header(
        std::as_bytes(std::span<const char>(bytes_.data(), bytes_.size())));
    ASSERT_TRUE(header.ok());
    int refused = 0;
    for (const SafetensorsEntry& t : header->tensors) {
      const bool compares =
          t.name.ends_with(".gate.weight") || t.name.find(".indexer.") != std::string::npos;
      if (t.shape.size() > 1 && !compares) continue;
      // 0x7fc0 is NaN in bf16 and f16.
      const std::string nan = t.dtype == SafetensorsDType::F32 ? std::string("\0\0\xc0\x7f", 4)
                                                               : std::string("\xc0\x7f");
      const std::size_t at = static_cast<std::size_t>(t.end) - nan.size();
      const std::string good = bytes_.substr(at, nan.size());
      bytes_.replace(at, nan.size(), nan);
      EXPECT_THAT(load(), AllOf(HasSubstr(t.name), HasSubstr("wanted numbers, got NaN at [")))
          << fixture;
      bytes_.replace(at, good.size(), good);
      ++refused;
    }
    EXPECT_GT(refused, 10) << fixture;
    EXPECT_EQ(load(), "loaded") << fixture;
    fs::remove_all(dir_);
  }
}

// The tensors' names and dtypes say how a matrix is quantised.
TEST_F(BadCheckpoint, Fp8NeedsNoQuantizationConfig) {
  copy("deepseek_v3_fp8");
  std::string config = *read_file(dir_ / "config.json");
  const std::size_t at = config.find("\"quantization_config\"");
  config.replace(at, 21, "\"Quantization_config\"");
  std::ofstream(dir_ / "config.json") << config;
  EXPECT_EQ(load(), "loaded");
}

// Products of experts are prepared for one dtype.
TEST_F(BadCheckpoint, ExpertsHaveOneDtype) {
  copy("qwen3_moe");
  EXPECT_EQ(load(), "loaded");
  const std::size_t name = bytes_.find("experts.1.up_proj.weight");
  ASSERT_NE(name, std::string::npos);
  const std::size_t dtype = bytes_.find("\"BF16\"", name);
  ASSERT_LT(dtype, name + 60);
  bytes_.replace(dtype, 6, "\"F16\" ");
  EXPECT_THAT(load(), HasSubstr("mlp.experts.1.up_proj f16 (wanted bf16, as experts.0 has)"));
  for (const std::int32_t rank : {0, 1}) {
    LoadOptions part;
    part.parallel = {2, 2, 1};
    part.rank = rank;
    const auto model = load_model(dir_.string(), part);
    ASSERT_FALSE(model.ok()) << "rank " << rank;
    EXPECT_THAT(model.error().message(), HasSubstr("experts.1.up_proj f16 (wanted bf16"));
  }
}

TEST_F(BadCheckpoint, NoDirectory) {
  EXPECT_FALSE(load_model((dir_ / "nowhere").string(), {}).ok());
}

// MXFP4 experts: both parts, dtype, and scale codes that kernels do not check.
TEST(Mxfp4Checkpoint, IsRefusedWhereItIsNone) {
  const GeneratedCheckpoint made(fixture_dir("gpt_oss"));
  const fs::path file = fs::path(made.dir()) / "model.safetensors";
  const std::string good = *read_file(file);
  const auto load = [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary) << bytes;
    const auto model = load_model(made.dir(), {});
    return model ? "loaded" : model.error().message();
  };
  const auto replaced = [&](const std::string& from, const std::string& to, std::size_t after) {
    std::string bytes = good;
    const std::size_t at = bytes.find(from, after);
    EXPECT_NE(at, std::string::npos) << from;
    return bytes.replace(at, from.size(), to);
  };
  EXPECT_EQ(load(good), "loaded");
  EXPECT_THAT(load(replaced("experts.down_proj_scales", "experts.down_proj_Scales", 0)),
              AllOf(HasSubstr("1 missing: model.layers.0.mlp.experts.down_proj_scales"),
                    HasSubstr("1 unexpected: model.layers.0.mlp.experts.down_proj_Scales")));
  EXPECT_THAT(load(replaced("\"U8\"", "\"I8\"", good.find("gate_up_proj_blocks"))),
              HasSubstr("gate_up_proj_blocks I8 [8, 576, 16, 16] (wanted U8 [8, 576, 16, 16])"));

  const auto header =
      parse_safetensors_header(std::as_bytes(std::span<const char>(good.data(), good.size())));
  ASSERT_TRUE(header.ok());
  for (const SafetensorsEntry& t : header->tensors) {
    if (t.name != "model.layers.1.mlp.experts.down_proj_scales") continue;
    for (const int code : {245, 246, 255}) {
      std::string bytes = good;
      bytes[static_cast<std::size_t>(t.end - 1)] = static_cast<char>(code);
      if (code == 245) {
        EXPECT_EQ(load(bytes), "loaded");
      } else {
        EXPECT_THAT(load(bytes), AllOf(HasSubstr(t.name), HasSubstr("scales below 2^119")));
      }
    }
  }
}

TEST(DummyModel, HasTheCheckpointsTensors) {
  for (const char* name : {"llama", "qwen3_moe", "deepseek_v3_fp8", "glm_moe_dsa", "gpt_oss",
                           "gpt_oss_bf16", "gemma3", "gemma4_moe", "mistral", "qwen2_mixed",
                           "formats_fp8", "formats_int4", "formats_fp4", "formats_experts"}) {
    const auto config = load_model_config(fixture_dir(name));
    ASSERT_TRUE(config.ok());
    ThreadPool threads(2);
    LoadOptions options;
    options.seed = 7;
    const auto one = make_dummy_model(*config, options);
    options.threads = &threads;
    const auto two = make_dummy_model(*config, options);
    ASSERT_TRUE(one.ok() && two.ok());
    EXPECT_EQ((*one)->weight_bytes(), (*two)->weight_bytes());
    const std::vector<std::int32_t> tokens = {5, 17, std::min(200, config->vocab - 1), 3, 3};
    const Logits a = ModelRunner(**one, {}).prompt(0, tokens);
    const Logits b = ModelRunner(**two, {.threads = 2}).prompt(0, tokens);
    EXPECT_EQ(a, b) << name;  // for any number of threads
    for (const float v : a.back()) ASSERT_TRUE(std::isfinite(v)) << name;
    options.seed = 8;
    EXPECT_NE(ModelRunner(**make_dummy_model(*config, options), {}).prompt(0, tokens), a);
  }
}

// kv_b_proj is split by heads, so it has no packed codes.
TEST(DummyModel, LatentAttentionHasPackedFormats) {
  for (const Quantization q : {Quantization::int4, Quantization::mxfp4, Quantization::nvfp4}) {
    auto config = load_model_config(fixture_dir("formats_experts"));
    ASSERT_TRUE(config.ok() && config->is_mla());
    config->quantization = q;
    const auto model = make_dummy_model(*config, {});
    ASSERT_TRUE(model.ok());
    for (const Device device : {Device::cpu, Device::ref}) {
      const Logits out = ModelRunner(**model, {.device = device}).prompt(0, {{5, 17, 3}});
      for (const float v : out.back()) ASSERT_TRUE(std::isfinite(v)) << static_cast<int>(q);
    }
  }
}

// Mistral 4's experts are in two tensors of a layer.
TEST_F(BadCheckpoint, NamesTheTensorOfAllExpertsOnce) {
  const auto folder = std::filesystem::path(testing::TempDir()) /
                      ("lathe_experts_of_another_shape_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::filesystem::path from = fixture_dir("mistral4");
  std::filesystem::copy_file(from / "config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::string tensors = *read_file(from / "tensors.json");
  const std::string shape = "[6, 40, 96]";
  tensors.replace(tensors.find(shape), shape.size(), "[6, 42, 96]");
  std::ofstream(folder / "tensors.json") << tensors;
  const GeneratedCheckpoint made(folder);
  const auto model = load_model(made.dir(), {});
  std::filesystem::remove_all(folder);
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.error().message(),
              HasSubstr("1 of another shape or dtype: model.layers.0.mlp.experts.gate_up_proj BF16 "
                        "[6, 42, 96] (wanted F32, BF16 or F16 [6, 40, 96])"));
}

}  // namespace
}  // namespace lathe
