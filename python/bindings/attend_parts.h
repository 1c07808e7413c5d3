// Arguments that attention on host memory and on a GPU read alike.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "arrays.h"
#include "attn/call_args.h"
#include "attn/lse_convention.h"

namespace lathe::python {

/// The named problem with the dims that the layout and the arrays have. options["planned"]: heads
/// and most rows of a plan, or None.
AttentionProblem problem_of(const std::string& attention, const Array& q, const CacheLayout& layout,
                            bool two_sources, const nb::dict& options);

LseConvention convention_of(const nb::dict& options);

CallBatch batch_of(std::int64_t rows, bool by_list, nb::handle q_indptr, nb::handle kv_lens);

}  // namespace lathe::python
