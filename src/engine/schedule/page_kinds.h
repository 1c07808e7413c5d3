// The kinds of page that an engine or a draft model allocates to requests.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/page_allocator.h"
#include "model/cache.h"

namespace lathe {

/// First the pages of each layer group, then the pages of each group's compressed entries, then the
/// slots of each state. `step_rows`: most rows of one request in a step.
std::vector<PageKind> page_kinds(KvCache& cache, std::int64_t step_rows);

}  // namespace lathe
