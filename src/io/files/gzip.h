// Reads whole compressed text files (test sets).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace lathe {

/// The uncompressed contents of a .gz file; other files are read as they are. Errors: io (it cannot
/// be opened), malformed (damaged or truncated data), exhausted (more than `max_bytes`).
Result<std::string> read_gzip_file(const std::filesystem::path& path,
                                   std::int64_t max_bytes = std::int64_t{256} << 20);

}  // namespace lathe
