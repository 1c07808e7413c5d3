// A checkpoint's quantisation, as config.json or hf_quant_config.json describe it.
#pragma once

#include <string>

#include "base/enum.h"
#include "model/config/config_reader.h"

namespace lathe {

struct ModelConfig;

// Formats of most linear layers' weights; where a checkpoint has several, the last of them in this
// list. The loader goes by each matrix's own tensors: this is for sizes before the files are read,
// and for buffers.
#define LATHE_QUANTIZATIONS(X)                                                           \
  X(none)                                                                                \
  X(fp8_blocks) /* e4m3, scales of 128 x 128 */                                          \
  X(fp8_rows)   /* e4m3, scales of rows or tensors */                                    \
  X(mxfp4)      /* experts of gpt-oss and DeepSeek V4 have ModelConfig::mxfp4 instead */ \
  X(int4)                                                                                \
  X(nvfp4)
LATHE_ENUM(Quantization, LATHE_QUANTIZATIONS)

/// The formats of weights that Lathe reads, for refusals.
std::string weight_formats_text();

/// Reads quantization_config of `json`, or compression_config; else, if it is not null,
/// hf_quant_config.json's object `quantization`. mxfp4_experts: the architecture stores experts
/// in MXFP4. Errors, naming the key: a method or format that is not supported.
void parse_quantization(ConfigReader& json, ConfigReader* hf_quant, bool mxfp4_experts,
                        ModelConfig& config);

}  // namespace lathe
