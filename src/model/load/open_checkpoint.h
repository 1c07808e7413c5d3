// Opens a model's checkpoint, and takes from it what its config.json does not say.
#pragma once

#include <string>

#include "base/result.h"
#include "io/checkpoint/checkpoint.h"
#include "model/config/config.h"

namespace lathe {

/// Opens the checkpoint in `directory`, and mtp.safetensors there if the draft layer is enabled.
/// Unties the embeddings in `config` if the checkpoint has a head that differs from them, as
/// transformers does: tie_word_embeddings is true by default, so files beat the flag. Compares the
/// two byte by byte. Adds the formats that the tensors have (formats_of_tensors.h). Errors:
/// Checkpoint::open()'s; an enabled draft layer that no file has.
Result<Checkpoint> open_checkpoint(const std::string& directory, ModelConfig& config);

}  // namespace lathe
