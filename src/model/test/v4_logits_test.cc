// DeepSeek V4 against Hugging Face transformers (tests/data/models, made by
// tools/fixtures/make_v4_fixtures.py), and its bits for different chunks of the same prompts.
#include "layout/simd_targets.h"

#include <hwy/targets.h>

#include <filesystem>
#include <fstream>

#include "io/files/read_file.h"
#include "model/test/generated_checkpoint.h"
#include "model/test/tensors_test_util.h"
#include "model/test/test_util.h"
#include "model/weights/tensor_table.h"

namespace lathe {
namespace {

// Bound against the reference with a cache rounded like Lathe's. The largest logits of each fixture
// are 6 to 7.
constexpr double kV4Tolerance = 1e-3;
// Bound against transformers in f32 throughout, on prompts too short for a choice of entries:
// rounding moves its own logits by up to 1.2e-2.
constexpr double kV4ExactTolerance = 2e-2;

/// A fixture's reference: logits of every position of its prompts.
class V4Reference {
 public:
  explicit V4Reference(const std::string& fixture)
      : file_(fixture_dir(fixture) + "/reference.safetensors") {}

  std::vector<std::int32_t> tokens(int length) const {
    return file_.values<std::int32_t>(stem(length) + "tokens");
  }
  /// With a rounded cache.
  Logits logits(int length) const {
    const auto numbers = file_.values<std::int16_t>(stem(length) + "rows");
    const auto scales = file_.values<float>(stem(length) + "scales");
    Logits out = rows({numbers.begin(), numbers.end()}, scales.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      for (float& v : out[i]) v *= scales[i];
    }
    return out;
  }
  /// In f32 throughout, of the shortest prompt alone.
  Logits exact(int length) const {
    return rows(file_.values<float>(stem(length) + "logits"), static_cast<std::size_t>(length));
  }

 private:
  static std::string stem(int length) { return "prompt." + std::to_string(length) + "."; }
  static Logits rows(const std::vector<float>& values, std::size_t count) {
    const auto vocab = std::ssize(values) / static_cast<std::ptrdiff_t>(count);
    Logits out;
    for (auto at = values.begin(); at != values.end(); at += vocab)
      out.emplace_back(at, at + vocab);
    return out;
  }

  TensorFile file_;
};

class V4 : public testing::TestWithParam<const char*> {
 protected:
  V4() : checkpoint_(fixture_dir(GetParam())), reference_(GetParam()) {
    LoadOptions options;
    options.threads = &threads_;
    auto model = load_model(checkpoint_.dir(), options);
    EXPECT_TRUE(model.ok()) << (model ? "" : model.error().message());
    if (model) model_ = std::move(*model);
  }
  // Compares every position, so it also checks the last one of prompts of 1 to 300 tokens.
  void compare(ModelRunner& runner, int request, int length) {
    const Logits got = runner.prompt(request, reference_.tokens(length));
    const Logits want = reference_.logits(length);
    ASSERT_EQ(got.size(), static_cast<std::size_t>(length));
    ASSERT_EQ(want.size(), got.size());
    for (std::size_t at = 0; at < got.size(); ++at) {
      const double error = relative_error(got[at], want[at]);
      worst_ = std::max(worst_, error);
      EXPECT_LE(error, kV4Tolerance) << "position " << at << " of " << length;
    }
    if (length > 7) return;
    const Logits exact = reference_.exact(length);
    for (std::size_t at = 0; at < got.size(); ++at) {
      EXPECT_LE(relative_error(got[at], exact[at]), kV4ExactTolerance) << "position " << at;
    }
  }
  static ModelRunner::Options inplace() {
    ModelRunner::Options options{.threads = 2};
    options.prefill = options.decode = "inplace";
    return options;
  }

  ThreadPool threads_{2};
  GeneratedCheckpoint checkpoint_;
  V4Reference reference_;
  std::unique_ptr<Model> model_;
  double worst_ = 0;
};

// Runs with every set of vector instructions that this CPU has.
TEST_P(V4, AgreesOnTheCpu) {
  ASSERT_NE(model_, nullptr);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target == HWY_SCALAR || target == HWY_EMU128) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    ModelRunner runner(*model_, {.layout = "mla_bf16", .threads = 2});
    int request = 0;
    for (const int length : {7, 150, 300}) compare(runner, request++, length);
  }
  hwy::SetSupportedTargetsForTest(0);
  RecordProperty("worst_relative_error", std::to_string(worst_));
}

TEST_P(V4, AgreesOnTheReferenceDevice) {
  ASSERT_NE(model_, nullptr);
  ModelRunner runner(*model_, {.device = Device::ref, .layout = "mla_bf16"});
  int request = 0;
  for (const int length : {7, 150}) compare(runner, request++, length);
}

TEST_P(V4, EveryCutGivesTheBitsOfOneShot) {
  ASSERT_NE(model_, nullptr);
  const std::vector<std::int32_t> tokens = reference_.tokens(300);
  const Logits want = ModelRunner(*model_, inplace()).prompt(0, tokens);
  for (const std::size_t chunk : {1, 3, 4, 5, 64, 127, 128, 129, 255, 256, 257}) {
    EXPECT_EQ(ModelRunner(*model_, inplace()).prompt(0, tokens, chunk), want) << chunk;
  }
  for (const auto& [from, to] : {std::pair{1, 20}, {126, 130}, {254, 258}}) {
    for (std::ptrdiff_t cut = from; cut <= to; ++cut) {
      ModelRunner runner(*model_, inplace());
      Logits got = runner.prompt(0, {tokens.begin(), tokens.begin() + cut});
      const Logits rest = runner.prompt(0, {tokens.begin() + cut, tokens.end()});
      got.insert(got.end(), rest.begin(), rest.end());
      EXPECT_EQ(got, want) << "cut at " << cut;
    }
  }
  EXPECT_EQ(ModelRunner(*model_, inplace()).prompt(0, tokens, 131, 9), want);
  ModelRunner::Options small = inplace();
  small.page_size = 128;
  EXPECT_EQ(ModelRunner(*model_, small).prompt(0, tokens, 70, 3), want);
}

// The requests' groups of tokens are aligned differently in the batch.
TEST_P(V4, ABatchOfSeveralResiduesGivesTheBitsOfEachAlone) {
  ASSERT_NE(model_, nullptr);
  const std::vector<std::int32_t> all = reference_.tokens(300);
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::size_t n : {129, 130, 131}) prompts.emplace_back(all.begin(), all.begin() + n);
  std::vector<Logits> want;
  for (const auto& p : prompts) want.push_back(ModelRunner(*model_, inplace()).prompt(0, p));
  ModelRunner together(*model_, inplace());
  std::vector<std::size_t> done(prompts.size());
  for (const std::size_t n : {1, 126, 1, 1, 2}) {
    std::vector<ModelRunner::Chunk> chunks;
    for (std::size_t r = 0; r < prompts.size(); ++r) {
      const std::size_t rows = std::min(n + r, prompts[r].size() - done[r]);
      if (rows == 0) continue;
      const auto first = prompts[r].begin() + static_cast<std::ptrdiff_t>(done[r]);
      chunks.push_back({static_cast<int>(r), {first, first + static_cast<std::ptrdiff_t>(rows)}});
    }
    const Logits got = together.step(chunks);
    std::size_t row = 0;
    for (const ModelRunner::Chunk& c : chunks) {
      const auto r = static_cast<std::size_t>(c.request);
      for (std::size_t i = 0; i < c.tokens.size(); ++i) {
        EXPECT_EQ(got[row++], want[r][done[r]++]) << "request " << r;
      }
    }
  }
  for (std::size_t r = 0; r < prompts.size(); ++r) EXPECT_EQ(done[r], prompts[r].size());
}

INSTANTIATE_TEST_SUITE_P(Fixtures, V4,
                         testing::Values("deepseek_v4", "deepseek_v4_fp8", "deepseek_v4_wide"),
                         [](const auto& fixture) { return std::string(fixture.param); });

// A row equals the last one of a prompt that ends there: 1 to 9 and 4,095 to 4,097 tokens, every
// residue of 4. The rows around 128 and 256 tokens are also rows of the shorter prompts.
TEST(V4Long, AgreesBeyondFourThousandTokens) {
  const GeneratedCheckpoint checkpoint(fixture_dir("deepseek_v4_wide"));
  const auto model = load_model(checkpoint.dir(), {});
  ASSERT_TRUE(model.ok()) << model.error().message();
  const TensorFile file(fixture_dir("deepseek_v4_wide") + "/reference.safetensors");
  const auto bytes = file.values<std::uint8_t>("long.tokens");
  const auto positions = file.values<std::int32_t>("long.positions");
  const auto want = file.values<float>("long.logits");
  ASSERT_EQ(bytes.size(), 4097u);
  for (const std::int32_t p : {0, 1, 2, 3, 4, 5, 6, 7, 8, 4093, 4094, 4095, 4096}) {
    EXPECT_THAT(positions, testing::Contains(p));
  }
  ModelRunner runner(**model, {.layout = "mla_bf16", .threads = 2, .context = 4352});
  const Logits got = runner.prompt(0, {bytes.begin(), bytes.end()}, 1024);
  const std::size_t vocab = got.front().size();
  double worst = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const double error = relative_error(got[static_cast<std::size_t>(positions[i])],
                                        std::span(want).subspan(i * vocab, vocab));
    worst = std::max(worst, error);
    EXPECT_LE(error, kV4Tolerance) << "position " << positions[i];
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
}

// Names as transformers' save_pretrained() writes them: its modules' outside the layers, the
// published ones within, except the norm of window keys.
std::string saved_name(const std::string& name) {
  const std::pair<const char*, const char*> outside[] = {
      {"embed.weight", "model.embed_tokens.weight"}, {"norm.weight", "model.norm.weight"},
      {"hc_head_fn", "model.hc_head.hc_fn"},         {"hc_head_base", "model.hc_head.hc_base"},
      {"hc_head_scale", "model.hc_head.hc_scale"},   {"head.weight", "head.weight"},
  };
  for (const auto& [from, to] : outside) {
    if (name == from) return to;
  }
  std::string out = "model." + name;
  const std::string norm = ".attn.kv_norm.weight";
  if (const std::size_t at = out.find(norm); at != std::string::npos) {
    out.replace(at, norm.size(), ".attn.norm.weight");
  }
  return out;
}

TEST(V4Names, AsTransformersSavesThem) {
  const GeneratedCheckpoint checkpoint(fixture_dir("deepseek_v4_fp8"));
  const std::vector<std::int32_t> tokens = V4Reference("deepseek_v4_fp8").tokens(150);
  const auto logits = [&] {
    const auto model = load_model(checkpoint.dir(), {});
    EXPECT_TRUE(model.ok()) << (model ? "" : model.error().message());
    return model ? ModelRunner(**model, {}).prompt(0, tokens) : Logits();
  };
  const Logits want = logits();
  const std::filesystem::path file = std::filesystem::path(checkpoint.dir()) / "model.safetensors";
  const std::string bytes = *read_file(file);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  const auto before = nlohmann::ordered_json::parse(bytes.substr(sizeof(size), size));
  nlohmann::ordered_json header;
  int renamed = 0;
  for (const auto& [name, entry] : before.items()) {
    header[saved_name(name)] = entry;
    renamed += saved_name(name) != name;
  }
  EXPECT_GT(renamed, 300);
  const std::string text = header.dump();
  const std::uint64_t written = text.size();
  std::filesystem::remove(file);  // the first model's mapping stays
  std::ofstream(file, std::ios::binary)
      << std::string_view(reinterpret_cast<const char*>(&written), sizeof(written)) << text
      << std::string_view(bytes).substr(sizeof(size) + size);
  EXPECT_EQ(logits(), want);
}

TEST(V4Names, OfEverySpelling) {
  const std::pair<const char*, const char*> known[] = {
      {"model.embed_tokens.weight", "embed.weight"},
      {"model.embed.weight", "embed.weight"},
      {"lm_head.weight", "head.weight"},
      {"model.norm.weight", "norm.weight"},
      {"model.hc_head.hc_base", "hc_head_base"},
      {"model.layers.3.attn_hc.fn", "layers.3.hc_attn_fn"},
      {"model.layers.3.self_attn.kv_norm.weight", "layers.3.attn.kv_norm.weight"},
      {"model.layers.3.attn.norm.weight", "layers.3.attn.kv_norm.weight"},  // save_pretrained()
      {"model.layers.3.self_attn.compressor.kv_norm.weight",
       "layers.3.attn.compressor.norm.weight"},
      {"model.layers.3.self_attn.compressor.indexer.kv_norm.weight",
       "layers.3.attn.indexer.compressor.norm.weight"},
      {"model.layers.3.self_attn.compressor.indexer.position_bias",
       "layers.3.attn.indexer.compressor.ape"},
      {"model.layers.3.self_attn.compressor.indexer.scorer.weights_proj.weight",
       "layers.3.attn.indexer.weights_proj.weight"},
      {"model.layers.3.self_attn.compressor.gate_proj.weight",
       "layers.3.attn.compressor.wgate.weight"},
      {"model.layers.3.mlp.experts.12.gate_proj.weight_scale_inv",
       "layers.3.ffn.experts.12.w1.scale"},
      {"model.layers.3.mlp.gate.e_score_correction_bias", "layers.3.ffn.gate.bias"},
      {"layers.3.attn.indexer.compressor.wkv.weight",
       "layers.3.attn.indexer.compressor.wkv.weight"},
      {"layers.3.attn.compressor.norm.weight", "layers.3.attn.compressor.norm.weight"},
      {"layers.3.ffn.shared_experts.w2.scale", "layers.3.ffn.shared_experts.w2.scale"},
      {"mtp.0.attn.wkv.weight", "mtp.0.attn.wkv.weight"},
  };
  for (const auto& [from, to] : known) EXPECT_EQ(published_v4_name(from), to) << from;
}

// The experts' matrices as ModelOpt writes NVFP4: the codes stay, and 2^e of 32 columns becomes
// twice an e4m3 scale of 16 columns, times a factor for the matrix. So every weight is the same.
void write_nvfp4_experts(const std::filesystem::path& dir) {
  constexpr float kFactor = 0.25f;
  TensorsByName tensors = read_tensors(dir / "model.safetensors");
  TensorsByName made;
  for (auto& [name, t] : tensors) {
    if (name.find(".experts.") == std::string::npos) {
      made[name] = t;
    } else if (t.dtype == "I8") {
      made[name] = {"U8", t.shape, t.bytes};
    } else {
      const std::string stem = name.substr(0, name.rfind('.'));
      std::string scales;
      for (const char byte : t.bytes) {
        const float scale = to_f32(ue8m0{static_cast<std::uint8_t>(byte)}) / kFactor;
        scales += std::string(2, static_cast<char>(to_e4m3(scale).bits));
      }
      made[stem + ".weight_scale"] = {"F8_E4M3", {t.shape[0], 2 * t.shape[1]}, scales};
      made[stem + ".weight_scale_2"] = {"F32", {}, bytes_of_values(std::vector{kFactor})};
      made[stem + ".input_scale"] = made[stem + ".weight_scale_2"];
    }
  }
  write_tensors(dir / "model.safetensors", made);
  auto config = nlohmann::json::parse(*read_file(dir / "config.json"));
  nlohmann::json& quantisation = config["quantization_config"];
  quantisation["quant_algo"] = "MIXED_PRECISION";
  quantisation["moe_quant_algo"] = "NVFP4";
  quantisation["config_groups"]["group_0"]["weights"] = {
      {"type", "float"}, {"num_bits", 4}, {"group_size", 16}};
  std::ofstream(dir / "config.json") << config.dump();
}

TEST(V4Nvfp4, ExpertsAgreeWithTransformers) {
  const GeneratedCheckpoint checkpoint(fixture_dir("deepseek_v4_fp8"));
  write_nvfp4_experts(checkpoint.dir());
  const auto model = load_model(checkpoint.dir(), {});
  ASSERT_TRUE(model.ok()) << model.error().message();
  const V4Reference reference("deepseek_v4_fp8");
  for (const Device device : {Device::cpu, Device::ref}) {
    ModelRunner runner(**model, {.device = device, .layout = "mla_bf16", .threads = 2});
    const Logits got = runner.prompt(0, reference.tokens(150)), want = reference.logits(150);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t at = 0; at < got.size(); ++at) {
      EXPECT_LE(relative_error(got[at], want[at]), kV4Tolerance) << "position " << at;
    }
  }
}

// Loads a generated fixture in which `from` was replaced by `to` in a file.
std::string refusal_with(const std::string& file, const std::string& from, const std::string& to) {
  const std::filesystem::path fixture = fixture_dir("deepseek_v4_fp8");
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / ("lathe_v4_" + std::to_string(getpid()));
  std::filesystem::create_directories(dir);
  for (const char* name : {"config.json", "tensors.json"}) {
    std::string text = *read_file(fixture / name);
    if (name == file) {
      const std::size_t at = text.find(from);
      EXPECT_NE(at, std::string::npos) << from;
      text.replace(at, from.size(), to);
    }
    std::ofstream(dir / name) << text;
  }
  const GeneratedCheckpoint checkpoint(dir);
  const auto model = load_model(checkpoint.dir(), {});
  std::filesystem::remove_all(dir);
  return model ? "accepted" : model.error().message();
}

TEST(V4Load, NamesWhatIsWrong) {
  const auto tensors = [](const std::string& from, const std::string& to) {
    return refusal_with("tensors.json", from, to);
  };
  EXPECT_THAT(tensors(R"("dtype": "I32", "shape": [256, 2], "count": 8)",
                      R"("dtype": "I32", "shape": [256, 2], "count": 9)"),
              testing::AllOf(testing::HasSubstr("gate.tid2eid["), testing::HasSubstr("0 to 7")));
  EXPECT_THAT(tensors("layers.2.ffn.experts.3.w2.scale", "layers.2.ffn.experts.3.w2.scales"),
              testing::HasSubstr("missing: layers.2.ffn.experts.3.w2.scale"));
  EXPECT_THAT(tensors("layers.1.attn.compressor.ape", "layers.1.attn.compressor.bias"),
              testing::HasSubstr("missing: layers.1.attn.compressor.ape"));
  EXPECT_EQ(tensors("layers.1.attn.compressor.ape", "model.layers.1.attn.compressor.position_bias"),
            "accepted");
  EXPECT_THAT(refusal_with("config.json", "\"num_hash_layers\": 2", "\"num_hash_layers\": 3"),
              testing::AllOf(testing::HasSubstr("missing: layers.2.ffn.gate.tid2eid"),
                             testing::HasSubstr("unexpected: layers.2.ffn.gate.bias")));
}

}  // namespace
}  // namespace lathe
