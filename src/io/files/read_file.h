// Reads whole small text files (configurations, templates).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lathe {

/// Whether a folder has the name, even as a link that leads nowhere: a model without an optional
/// file is another model than one with a broken link in its place, which read_file() refuses.
bool is_listed(const std::filesystem::path& path);

/// The file's bytes. Errors: io (it cannot be opened or read; with errno's text), exhausted (larger
/// than `max_bytes`).
Result<std::string> read_file(const std::filesystem::path& path,
                              std::int64_t max_bytes = std::int64_t{256} << 20);

/// read_file() of a file that a flag names: errors name the flag, too.
Result<std::string> read_flag_file(std::string_view flag, const std::filesystem::path& path);

}  // namespace lathe
