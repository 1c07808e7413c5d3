#include "io/files/model_path.h"

#include <array>
#include <filesystem>
#include <string_view>

#include "io/files/mapped_file.h"
#include "io/files/read_file.h"

namespace lathe {

Result<void> check_model_path(const std::string& path) {
  struct Format {
    std::string_view extension, name, hint;
  };
  constexpr std::string_view kConvert = "convert it to a folder of safetensors files";
  constexpr std::array kFormats = {
      Format{".gguf", "a GGUF file", kConvert},
      Format{".ggml", "a GGML file", kConvert},
      Format{".bin", "a PyTorch pickle", kConvert},
      Format{".pt", "a PyTorch pickle", kConvert},
      Format{".pth", "a PyTorch pickle", kConvert},
      Format{".safetensors", "one safetensors file", "give the folder that it is in"}};
  std::error_code ec;
  if (std::filesystem::symlink_status(path, ec).type() == std::filesystem::file_type::not_found) {
    return Error{ErrorCode::io, path, "a folder with config.json and *.safetensors",
                 "nothing there", "check the model's path"};
  }
  if (!std::filesystem::is_regular_file(path, ec)) return {};
  const std::string extension = std::filesystem::path(path).extension().string();
  for (const Format& f : kFormats) {
    if (extension != f.extension) continue;
    return Error{ErrorCode::unsupported, path, "a folder with config.json and *.safetensors",
                 std::string(f.name), std::string(f.hint)};
  }
  return {};
}

Result<void> check_model_files(const std::string& folder) {
  constexpr std::array kFiles = {"config.json",
                                 "generation_config.json",
                                 "hf_quant_config.json",
                                 "model.safetensors.index.json",
                                 "tokenizer.json",
                                 "tokenizer_config.json",
                                 "tiktoken.model",
                                 "chat_template.jinja",
                                 "chat_template.json",
                                 "additional_chat_templates/tool_use.jinja",
                                 "encoding/encoding_dsv4.py"};
  for (const char* file : kFiles) {
    const std::filesystem::path path = std::filesystem::path(folder) / file;
    if (!is_listed(path)) continue;
    if (const auto opened = MappedFile::open(path); !opened) return with_way_out(opened.error());
  }
  return {};
}

Error with_way_out(Error error) {
  if (!error.hint.empty()) return error;
  if (error.code == ErrorCode::malformed || error.code == ErrorCode::io) {
    error.hint = "mend the file, or copy the model again";
  } else if (error.code == ErrorCode::unsupported) {
    error.hint = "docs/models.md and docs/tokenizer.md list what is supported";
  }
  return error;
}

}  // namespace lathe
