// The RoPE tables of a model's layer groups.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "model/config/config.h"
#include "model/layers/layer_context.h"

namespace lathe {

/// One set of tables for all layer groups with the same RoPE.
struct ModelRope {
  std::vector<RopeTables> tables;
  std::vector<std::size_t> of_group;  // [groups] into tables
  std::int64_t positions = 0;
};

/// Makes the tables in the first forward pass, for the positions that its cache can have; a model's
/// own maximum, and a plan's context, can be far longer.
class RopeCache {
 public:
  /// Tables for at least `positions` positions. Threads may call it. Errors: RopeTable::make()'s.
  Result<std::shared_ptr<const ModelRope>> tables(const ModelConfig& config,
                                                  std::int64_t positions);

 private:
  std::mutex guard_;
  std::shared_ptr<const ModelRope> made_;
};

}  // namespace lathe
