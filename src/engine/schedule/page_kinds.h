// The kinds of page that an engine or a drafter shares out among requests.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/page_allocator.h"
#include "model/cache.h"

namespace lathe {

/// The pages of every layer group, then those of compressed entries, then the slots of every state.
/// `step_rows`: rows of one request in a step, at most.
std::vector<PageKind> page_kinds(KvCache& cache, std::int64_t step_rows);

}  // namespace lathe
