// Compressed text files (test sets) read whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace lathe {

/// The bytes that a .gz file holds; a file that is not compressed is read as it is. Errors: io
/// where it cannot be opened, malformed where its data are damaged or end early, exhausted where
/// more than `max_bytes` come out.
Result<std::string> read_gzip_file(const std::filesystem::path& path,
                                   std::int64_t max_bytes = std::int64_t{256} << 20);

}  // namespace lathe
