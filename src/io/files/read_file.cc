#include "io/files/read_file.h"

#include <fmt/format.h>

#include "io/files/mapped_file.h"

namespace lathe {

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

}  // namespace lathe
