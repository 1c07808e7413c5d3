// The sizes of a model that ranks divide.
#pragma once

#include "attn/ranks.h"
#include "model/config/config.h"

namespace lathe {

/// Rows and columns at which the weights of most linear layers can be cut: blocks that share a
/// scale, else 16.
std::int64_t split_block(const ModelConfig& config);

/// From the configuration, with blocks for the formats that it names. All layers of a model have
/// the same heads.
SplitSizes split_sizes(const ModelConfig& config);

/// The configuration as one of `ranks` computes it: with the rank's heads in every problem, and its
/// groups of DeepSeek V4's output projection. Widths, experts and vocabulary stay the whole
/// model's; the ranks' weights have their own. Precondition: as for share_of().
ModelConfig rank_config(ModelConfig config, std::int32_t ranks);

}  // namespace lathe
