#include "io/files/read_file.h"

#include <fmt/format.h>

#include <system_error>

#include "io/files/mapped_file.h"

namespace lathe {

bool is_listed(const std::filesystem::path& path) {
  std::error_code ec;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ec));
}

Result<std::string> read_file(const std::filesystem::path& path, std::int64_t max_bytes) {
  // A mapping provides the size check and errors; copying small files is cheap.
  auto file = MappedFile::open(path);
  if (!file) return file.error();
  const auto bytes = file->bytes();
  if (static_cast<std::int64_t>(bytes.size()) > max_bytes) {
    return Error{ErrorCode::exhausted, path.string(), fmt::format("at most {} bytes", max_bytes),
                 fmt::format("{} bytes", bytes.size()), ""};
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<std::string> read_flag_file(std::string_view flag, const std::filesystem::path& path) {
  auto text = read_file(path);
  if (text) return text;
  Error error = text.error();
  if (error.hint.empty()) error.hint = fmt::format("{} names it", flag);
  return error;
}

}  // namespace lathe
