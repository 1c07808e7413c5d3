// Reads whole small text files (configurations, templates).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace lathe {

/// The file's bytes. Errors: io (it cannot be opened or read; with errno's text), exhausted (larger
/// than `max_bytes`).
Result<std::string> read_file(const std::filesystem::path& path,
                              std::int64_t max_bytes = std::int64_t{256} << 20);

}  // namespace lathe
