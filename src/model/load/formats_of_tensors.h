// Formats of weights that a checkpoint has and its config.json does not name.
#pragma once

#include "io/checkpoint/checkpoint.h"
#include "model/config/config.h"

namespace lathe {

/// Adds to the configuration what its quantization_config would say. The loader binds matrices by
/// their tensors; plans, products and the parts of ranks need it before. A configuration that names
/// a format keeps it, but DeepSeek V4's matrices may be in e4m3, and its experts in fp4, anyway.
void add_formats(const Checkpoint& checkpoint, ModelConfig& config);

}  // namespace lathe
