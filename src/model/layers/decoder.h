// The decoder that all architectures share: layers of attention and feed-forward over a residual
// stream.
#pragma once

#include <memory>

#include "model/config/config.h"
#include "model/model.h"
#include "model/weights/weights.h"

namespace lathe {

std::unique_ptr<Model> make_decoder(const ModelConfig& config,
                                    std::unique_ptr<ModelWeights> weights);

}  // namespace lathe
