// Copies cached tokens to the requests' own pages before a step's rows read them: a prompt that
// leaves a cached one inside a page needs a page of its own for what follows.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/runner/batch_item.h"
#include "kernels/backend.h"
#include "model/cache.h"

namespace lathe {

class CachedCopies {
 public:
  /// Starts the copies that the items ask for (BatchItem::copied), in all pools of the layer
  /// groups. The lists stay until the next call, which must come after the step. Errors: the
  /// device's.
  Result<void> run(std::span<const BatchItem> items, std::span<const std::size_t> groups,
                   KvCache& cache, const OpsContext& ops);

 private:
  Result<void> run_group(std::size_t group, KvCache& cache, const OpsContext& ops);
  // [groups][tokens to copy] Slots, of one page size.
  std::vector<std::vector<std::int32_t>> from_, to_;
};

}  // namespace lathe
