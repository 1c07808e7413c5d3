// What a user may name in place of a model's folder.
#pragma once

#include <string>

#include "base/result.h"

namespace lathe {

/// Refuses a file of weights in place of a directory, naming its format: GGUF, a pickle, a single
/// safetensors file.
Result<void> check_model_path(const std::string& path);

}  // namespace lathe
