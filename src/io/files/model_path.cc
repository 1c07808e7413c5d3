#include "io/files/model_path.h"

#include <array>
#include <filesystem>
#include <string_view>

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
