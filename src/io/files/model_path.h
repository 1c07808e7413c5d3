// A model's folder: what a user may name in its place, and errors of its files.
#pragma once

#include <string>

#include "base/result.h"

namespace lathe {

/// Refuses a path that leads nowhere, and a file of weights in place of a directory, naming its
/// format: GGUF, a pickle, a single safetensors file.
Result<void> check_model_path(const std::string& path);

/// Opens the files beside the weights that a model's commands read, those that are there. A folder
/// or a broken link in place of one is refused whatever the command: others would read it.
Result<void> check_model_files(const std::string& folder);

/// An error of a model's file with what to do about it, unless it says so already.
Error with_way_out(Error error);

}  // namespace lathe
