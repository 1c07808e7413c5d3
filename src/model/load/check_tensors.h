// Checks a checkpoint against the tensor table without reading all weights.
#pragma once

#include <string>

#include "base/result.h"
#include "base/threads.h"
#include "io/checkpoint/checkpoint.h"
#include "model/config/config.h"

namespace lathe {

/// load_model()'s check of names, shapes and dtypes, from the headers alone. What only the weights'
/// bytes tell (NaN codes, scales and ids out of range) is not checked. `directory` is for messages.
/// Errors: one list of missing, unexpected and misshapen tensors, up to 16 of each.
Result<void> check_tensors(const std::string& directory, const ModelConfig& config,
                           const Checkpoint& checkpoint);

/// The same, lists of experts (`tid2eid`), scales of caches, and of quantised matrices the scales,
/// factors, shapes before packing, orders of columns, and GPTQ's zero points where they have to be
/// 8: at most an eighth of the file. What is left to load_model() are NaN codes of e4m3. threads:
/// or null.
Result<void> check_scales(const std::string& directory, const ModelConfig& config,
                          const Checkpoint& checkpoint, ThreadPool* threads);

}  // namespace lathe
