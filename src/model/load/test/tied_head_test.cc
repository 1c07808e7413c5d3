// Heads of checkpoints whose config.json ties them to the embeddings.
#include <filesystem>
#include <fstream>

#include "io/files/read_file.h"
#include "model/test/generated_checkpoint.h"
#include "model/test/test_util.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void set_tied(const std::string& dir, bool tied) {
  auto config = nlohmann::json::parse(*read_file(fs::path(dir) / "config.json"));
  config["tie_word_embeddings"] = tied;
  std::ofstream(fs::path(dir) / "config.json") << config.dump();
}

// Adds a tensor of `shape` with the embedding's first bytes.
void add_head(const std::string& dir, const std::vector<std::int64_t>& shape) {
  const fs::path file = fs::path(dir) / "model.safetensors";
  const std::string bytes = *read_file(file);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  auto header = nlohmann::ordered_json::parse(bytes.substr(8, size));
  std::string data = bytes.substr(8 + size);
  const auto embedding = header["model.embed_tokens.weight"];
  const auto begin = embedding["data_offsets"][0].get<std::size_t>();
  const std::size_t size_of = embedding["dtype"] == "F32" ? 4 : 2;
  const std::size_t count = size_of * static_cast<std::size_t>(shape[0] * shape[1]);
  header["lm_head.weight"] = {{"dtype", embedding["dtype"]},
                              {"shape", shape},
                              {"data_offsets", {data.size(), data.size() + count}}};
  data += data.substr(begin, count);
  const std::string text = header.dump();
  size = text.size();
  std::ofstream(file, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&size), sizeof size) << text << data;
}

// transformers keeps a head that differs, and warns: the reference logits are those of the
// checkpoint's own head, whatever the flag.
TEST(TensorTable, A5HeadThatDiffersFromTheEmbedding) {
  const GeneratedCheckpoint made(fixture_dir("mistral"));
  set_tied(made.dir(), true);
  const auto model = load_model(made.dir(), {});
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_FALSE((*model)->config().tied_embeddings);
  const ReferencePrompt want = Reference("mistral").prompt(7);
  const Logits got = ModelRunner(**model, {}).prompt(0, want.tokens);
  const std::size_t vocab = got.front().size();
  for (std::size_t i = 0; i < want.positions.size(); ++i) {
    const std::span row(want.logits_bf16_cache.data() + i * vocab, vocab);
    EXPECT_LE(relative_error(got[static_cast<std::size_t>(want.positions[i])], row), 2e-3) << i;
  }
}

// DeepSeek V4's head has another name.
TEST(TensorTable, A5V4HeadThatDiffersFromTheEmbedding) {
  const GeneratedCheckpoint made(fixture_dir("deepseek_v4"));
  const std::vector<std::int32_t> tokens = {5, 17, 200, 3, 3};
  const auto own = load_model(made.dir(), {});
  ASSERT_TRUE(own.ok()) << own.error().message();
  const ModelRunner::Options options{.layout = "mla_bf16"};
  const Logits want = ModelRunner(**own, options).prompt(0, tokens);
  set_tied(made.dir(), true);
  const auto model = load_model(made.dir(), {});
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_EQ(ModelRunner(**model, options).prompt(0, tokens), want);
}

TEST(TensorTable, A5HeadThatEqualsTheEmbeddingIsShared) {
  const GeneratedCheckpoint made(fixture_dir("gemma3_new"));
  const auto without = load_model(made.dir(), {});
  ASSERT_TRUE(without.ok());
  add_head(made.dir(), {211, 512});
  const auto with = load_model(made.dir(), {});
  ASSERT_TRUE(with.ok()) << with.error().message();
  EXPECT_TRUE((*with)->config().tied_embeddings);
  EXPECT_EQ((*with)->weight_bytes(), (*without)->weight_bytes());
}

TEST(TensorTable, A5HeadOfAnotherShapeIsRefused) {
  const GeneratedCheckpoint made(fixture_dir("gemma3_new"));
  add_head(made.dir(), {210, 512});
  const auto model = load_model(made.dir(), {});
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.error().message(), HasSubstr("lm_head.weight [210, 512] (wanted [211, 512])"));
}

}  // namespace
}  // namespace lathe
