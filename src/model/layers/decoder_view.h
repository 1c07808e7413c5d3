// DecoderView: a decoder's configuration and weights, as the parts of its forward pass read them.
#pragma once

#include <cstdint>
#include <span>

#include "model/config/config.h"
#include "model/weights/weights.h"

namespace lathe {

struct DecoderView {
  const ModelConfig& config;
  const ModelWeights& weights;
  std::span<const std::int64_t> vocab_first;  // [ranks + 1] first token of each rank, then vocab
};

}  // namespace lathe
