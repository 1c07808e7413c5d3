#include "io/files/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace lathe {

Result<std::string> read_gzip_file(const std::filesystem::path& path, std::int64_t max_bytes) {
  errno = 0;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) {
    return Error{ErrorCode::io, path.string(), "a readable file",
                 errno != 0 ? std::strerror(errno) : "no memory for zlib", ""};
  }
  std::string out;
  std::array<char, 1 << 16> piece;
  for (;;) {
    const int got = gzread(file.get(), piece.data(), piece.size());
    int code = Z_OK;
    const char* text = gzerror(file.get(), &code);
    // A truncated file yields its beginning, then Z_BUF_ERROR.
    if (got < 0 || code == Z_BUF_ERROR) {
      return Error{code == Z_ERRNO ? ErrorCode::io : ErrorCode::malformed, path.string(),
                   "a whole gzip file or plain text", code == Z_ERRNO ? std::strerror(errno) : text,
                   ""};
    }
    if (got == 0) return out;
    out.append(piece.data(), static_cast<std::size_t>(got));
    if (static_cast<std::int64_t>(out.size()) > max_bytes) {
      return Error{ErrorCode::exhausted, path.string(),
                   fmt::format("at most {} bytes of text", max_bytes), "more", ""};
    }
  }
}

}  // namespace lathe
