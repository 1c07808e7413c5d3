// Files of a model that are there and cannot be read: every loader names the file once and says
// what to do. A link that leads nowhere is not an absent file.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "io/checkpoint/checkpoint.h"
#include "io/files/model_path.h"
#include "io/files/read_file.h"
#include "io/template/chat_template.h"
#include "io/tokenizer/tokenizer.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ModelFiles : public testing::Test {
 protected:
  ModelFiles() {
    std::string pattern = (fs::temp_directory_path() / "lathe-model-files-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~ModelFiles() override {
    std::error_code ec;
    fs::remove_all(dir_, ec);
  }

  static constexpr const char* kWayOut = "; mend the file, or copy the model again";

  fs::path dir_;
};

TEST_F(ModelFiles, ABrokenLinkIsListed) {
  EXPECT_FALSE(is_listed(dir_ / "tokenizer.json"));
  for (const char* name : {"tokenizer.json", "model.safetensors", "chat_template.jinja"}) {
    fs::create_symlink("blobs/none", dir_ / name);
    EXPECT_TRUE(is_listed(dir_ / name));
  }
  fs::create_symlink("loop", dir_ / "loop");
  EXPECT_TRUE(is_listed(dir_ / "loop"));
  // Not another tokenizer, other weights or another template in their place.
  std::ofstream(dir_ / "tiktoken.model") << "IQ== 0\n";
  std::ofstream(dir_ / "other.safetensors") << "";
  std::ofstream(dir_ / "tokenizer_config.json") << R"({"chat_template": "x"})";
  const auto tokenizer = Tokenizer::load(dir_);
  const auto weights = Checkpoint::open(dir_);
  const auto chat = load_chat_template(dir_);
  ASSERT_FALSE(tokenizer.ok() || weights.ok() || chat.ok());
  for (const auto& [message, name] : {std::pair(tokenizer.error().message(), "tokenizer.json"),
                                      std::pair(weights.error().message(), "model.safetensors"),
                                      std::pair(chat.error().message(), "chat_template.jinja")}) {
    EXPECT_EQ(message, (dir_ / name).string() +
                           ": wanted a readable file, got No such file or directory" + kWayOut);
  }
}

TEST_F(ModelFiles, AFolderInPlaceOfAFileIsRefusedByEveryCommand) {
  EXPECT_TRUE(check_model_files(dir_).ok());
  for (const char* name :
       {"config.json", "generation_config.json", "hf_quant_config.json", "tokenizer.json",
        "tokenizer_config.json", "tiktoken.model", "model.safetensors.index.json",
        "chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja",
        "encoding/encoding_dsv4.py"}) {
    fs::create_directories(dir_ / name);
    const auto ok = check_model_files(dir_);
    ASSERT_FALSE(ok) << name;
    EXPECT_EQ(ok.error().message(),
              (dir_ / name).string() + ": wanted a regular file, got a directory" + kWayOut);
    fs::remove(dir_ / name);
    std::ofstream(dir_ / name) << "{}";
    EXPECT_TRUE(check_model_files(dir_).ok()) << name;
    fs::remove(dir_ / name);
    fs::create_symlink("blobs/none", dir_ / name);
    EXPECT_FALSE(check_model_files(dir_).ok()) << name;
    fs::remove(dir_ / name);
  }
}

TEST_F(ModelFiles, APathThatLeadsNowhereIsNoFileToMend) {
  const std::string path = dir_ / "none";
  EXPECT_EQ(Tokenizer::load(path).error().message(),
            path +
                ": wanted a folder with config.json and *.safetensors, got nothing there; check "
                "the model's path");
}

TEST_F(ModelFiles, ATokenizerIsNamedOnce) {
  const std::string file = (dir_ / "tokenizer.json").string();
  for (const auto& [text, said] :
       {std::pair("", ": wanted valid JSON, got the end after byte 0"),
        std::pair("{", ": wanted valid JSON, got the end after byte 1"),
        std::pair("[]", ": wanted an object, got an array of 0"),
        std::pair(R"({"a": 1, "a": 2})", ": wanted unique names, got \"a\" twice"),
        std::pair(R"({"version": 1})", ": version: wanted a string, got 1")}) {
    std::ofstream(file) << text;
    const auto tokenizer = Tokenizer::load(dir_);
    ASSERT_FALSE(tokenizer.ok()) << text;
    EXPECT_EQ(tokenizer.error().message(), file + said + kWayOut) << text;
  }
}

}  // namespace
}  // namespace lathe
