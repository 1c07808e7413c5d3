// LayerContext: the arguments that all parts of a layer share in a forward pass.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "layout/rope/rope.h"
#include "model/cache.h"
#include "model/config/config.h"
#include "model/model.h"
#include "step/step.h"

namespace lathe {

/// RoPE tables of a layer group, for all positions of a cache (KvCache::positions()).
struct RopeTables {
  RopeTable main;
  std::optional<RopeTable> index;  // sparse problems
  // Queries that grow with their position: in place of `main`, or of latent attention next to it,
  // for whole heads.
  std::optional<RopeTable> query;
};

/// The keys that an indexer selected for the rows of a segment. Layers without an indexer reuse the
/// selection of the layer before.
struct Selection {
  std::int32_t* slots = nullptr;  // [rows, width] in the main pool; -1: no key
  std::int64_t width = 0;         // 0: the segment attends to all its keys
  // An indexer has listed all keys of every row, which are the same in the layers that follow.
  bool all = false;

  std::span<const std::int32_t> view(std::int64_t rows) const {
    return {slots, static_cast<std::size_t>(rows * width)};
  }
};

struct LayerContext {
  const OpsContext& ops;
  const ModelConfig& config;
  const Plan& plan;  // of the layer's group; so are the fields below, except the cache
  const RopeTables& rope;
  KvCache& cache;
  std::int32_t layer = 0;  // in the model
  std::span<const Segment> segments;
  std::span<Selection> selections;       // [segments]
  std::span<const std::int32_t> tokens;  // [rows], all segments
  RowsView inputs = {};  // [rows, LayerInputs::width] f32 of the layer, or no columns
  // A selection to reuse, as in ForwardArgs; empty: the layer makes its own.
  std::span<const std::int32_t> choices = {};
  std::span<const std::int32_t> choice_rows = {};
};

}  // namespace lathe
