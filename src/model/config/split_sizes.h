// The sizes of a model that ranks divide.
#pragma once

#include "attn/ranks.h"
#include "model/config/config.h"

namespace lathe {

/// From the configuration, with blocks for the formats that it names. All layers of a model have
/// the same heads.
SplitSizes split_sizes(const ModelConfig& config);

}  // namespace lathe
