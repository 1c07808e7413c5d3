// Heads in fp8 and int4 (GPTQ's "lm_head": true), against the same numbers in bf16.
#include <filesystem>
#include <random>

#include "base/float_formats.h"
#include "base/test_scale.h"
#include "model/test/generated_checkpoint.h"
#include "model/test/tensors_test_util.h"
#include "model/test/test_util.h"

namespace lathe {
namespace {

constexpr float kScale = 0x1p-6f;  // a power of two: code times scale is exact in bf16

class PackedHead : public testing::Test {
 protected:
  PackedHead() : made_(fixture_dir("formats_int4")) {
    tensors_ = read_tensors(file());
    tensors_.erase("lm_head.weight");
    // A vocabulary of whole words of int4 codes.
    TensorBytes& embedding = tensors_["model.embed_tokens.weight"];
    hidden_ = embedding.shape[1];
    vocab_ = embedding.shape[0] = 64;
    embedding.bytes.resize(static_cast<std::size_t>(vocab_ * hidden_) * sizeof(bf16));
    const std::filesystem::path config = std::filesystem::path(made_.dir()) / "config.json";
    auto json = nlohmann::json::parse(*read_file(config));
    json["vocab_size"] = vocab_;
    std::ofstream(config) << json.dump();
  }
  std::filesystem::path file() const {
    return std::filesystem::path(made_.dir()) / "model.safetensors";
  }
  Logits logits(const TensorsByName& head) {
    TensorsByName all = tensors_;
    all.insert(head.begin(), head.end());
    write_tensors(file(), all);
    const auto model = load_model(made_.dir(), {});
    EXPECT_TRUE(model.ok()) << (model ? "" : model.error().message());
    if (!model) return {};
    return ModelRunner(**model, {.threads = 2}).prompt(0, {3, 1, 4, 1, 5, 9, 2, 6});
  }
  TensorBytes in_bf16(const std::vector<float>& values) const {
    std::vector<bf16> out;
    for (const float v : values) {
      out.push_back(to_bf16(v));
      EXPECT_EQ(to_f32(out.back()), v);
    }
    return {"BF16", {vocab_, hidden_}, bytes_of_values(out)};
  }
  void expect_same(const std::vector<float>& values, const TensorsByName& packed) {
    const Logits want = logits({{"lm_head.weight", in_bf16(values)}});
    const Logits got = logits(packed);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(relative_error(got[i], want[i]), 1e-5) << i;
    }
  }

  GeneratedCheckpoint made_;
  TensorsByName tensors_;
  std::int64_t vocab_ = 0, hidden_ = 0;
  std::mt19937 rng_{test_seed(1)};
};

TEST_F(PackedHead, Fp8) {
  std::vector<float> values;
  std::string codes;
  for (std::int64_t i = 0; i < vocab_ * hidden_; ++i) {
    const e4m3 code{static_cast<std::uint8_t>(rng_() % 0x70 | (rng_() & 1u) << 7)};
    codes += static_cast<char>(code.bits);
    values.push_back(to_f32(code) * kScale);
  }
  const std::vector scales(static_cast<std::size_t>(vocab_), to_bf16(kScale));
  expect_same(values, {{"lm_head.weight", {"F8_E4M3", {vocab_, hidden_}, codes}},
                       {"lm_head.weight_scale", {"BF16", {vocab_, 1}, bytes_of_values(scales)}}});
}

TEST_F(PackedHead, Gptq) {
  constexpr std::int32_t kGroup = 128;
  std::vector<float> values(static_cast<std::size_t>(vocab_ * hidden_));
  std::vector<std::uint32_t> words(values.size() / 8);  // [hidden / 8, vocab]
  for (std::int64_t row = 0; row < hidden_; ++row) {
    for (std::int64_t out = 0; out < vocab_; ++out) {
      const auto code = static_cast<std::uint32_t>(rng_() % 16);
      words[static_cast<std::size_t>(row / 8 * vocab_ + out)] |= code << (4 * (row % 8));
      values[static_cast<std::size_t>(out * hidden_ + row)] =
          (static_cast<float>(code) - 8) * kScale;
    }
  }
  const std::int64_t groups = hidden_ / kGroup;
  const std::vector scales(static_cast<std::size_t>(groups * vocab_), to_f16(kScale));
  const std::vector<std::uint32_t> zeros(static_cast<std::size_t>(groups * vocab_ / 8),
                                         0x77777777u);
  std::vector<std::int32_t> group_of(static_cast<std::size_t>(hidden_));
  for (std::size_t row = 0; row < group_of.size(); ++row) {
    group_of[row] = static_cast<std::int32_t>(row) / kGroup;
  }
  expect_same(values, {{"lm_head.g_idx", {"I32", {hidden_}, bytes_of_values(group_of)}},
                       {"lm_head.qweight", {"I32", {hidden_ / 8, vocab_}, bytes_of_values(words)}},
                       {"lm_head.qzeros", {"I32", {groups, vocab_ / 8}, bytes_of_values(zeros)}},
                       {"lm_head.scales", {"F16", {groups, vocab_}, bytes_of_values(scales)}}});
}

}  // namespace
}  // namespace lathe
