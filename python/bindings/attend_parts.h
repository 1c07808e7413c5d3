// What attention on host memory and on a GPU take alike from a Python caller.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "attn/capability.h"
#include "attn/problem.h"

namespace lathe::python {

/// The named problem with the dims that the layout and the arrays have. options["planned"]: heads
/// and most rows of a plan, or None.
AttentionProblem problem_of(const std::string& attention, const Array& q, const CacheLayout& layout,
                            bool two_sources, const nb::dict& options);

/// The requests; what the caller left out follows from the rest: a request of each row, or, where
/// lists name the keys, one request of all rows.
struct Batch {
  std::vector<std::int32_t> indptr;
  std::vector<std::int32_t> lens;

  Batch(std::int64_t rows, bool by_list, nb::handle q_indptr, nb::handle kv_lens);
};

/// Errors: not as many requests as rows, where q_indptr is left out.
void need_a_row_each(std::int64_t requests, std::int64_t rows);

/// pool, extra: what it must read where it lies; a device may have several kernels of a kind.
/// Errors: no such kernel, none that reads them, or one that this build cannot run.
Kernel find_kernel(const std::string& device, const std::string& kind, ProblemKind problem,
                   const std::optional<ConstPoolView>& pool = {},
                   const std::optional<ConstPoolView>& extra = {});

}  // namespace lathe::python
