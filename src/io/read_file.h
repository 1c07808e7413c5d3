// Small text files (configurations, templates) read whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace lathe {

/// The file's bytes. Errors: io where it cannot be opened or read (errno's text), exhausted where
/// it is larger than `max_bytes`.
Result<std::string> read_file(const std::filesystem::path& path,
                              std::int64_t max_bytes = std::int64_t{256} << 20);

}  // namespace lathe
