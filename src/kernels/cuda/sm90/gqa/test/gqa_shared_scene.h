// Scenes of requests that share the beginnings of their page tables.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/sm90/gqa/test/gqa_checks.h"
#include "step/prefix_groups.h"

namespace lathe::cuda {

/// Gives a request the first `pages` pages of another one.
inline void share_pages(Bf16Scene& s, std::size_t request, std::size_t of, int pages) {
  for (int page = 0; page < pages; ++page) s.batch.entry(request, page) = s.batch.entry(of, page);
}

/// The lists of a scene's call, in which groups cost nothing.
struct SharedLists {
  std::vector<std::int32_t> lists;
  PrefixSavings savings;

  explicit SharedLists(Bf16Scene& s) : SharedLists(s.args) {}
  explicit SharedLists(AttendArgs& args) {
    const int page = args.main.pool->page_size;
    const std::int32_t window = args.problem.window;
    std::vector<PrefixRequest> requests;
    std::vector<std::int32_t> row_requests;
    for (std::size_t r = 0; r < args.kv_lens.size(); ++r) {
      const std::int32_t first = args.q_indptr[r], rows = args.q_indptr[r + 1] - first;
      const std::int32_t before = args.kv_lens[r] - rows;
      PrefixRequest request{{}, first, rows};
      const bool seen = window == 0 || args.kv_lens[r] <= window;
      if (rows > 0 && before >= page && seen) {
        request.pages =
            args.main.page_table.subspan(r * static_cast<std::size_t>(args.main.table_width),
                                         static_cast<std::size_t>(before / page));
      }
      requests.push_back(request);
      row_requests.insert(row_requests.end(), static_cast<std::size_t>(rows),
                          static_cast<std::int32_t>(r));
    }
    const auto count = std::ssize(requests);
    lists.resize(static_cast<std::size_t>(PrefixLists<std::int32_t>::size(count, args.q.rows)));
    const AttentionProblem& p = args.problem;
    const bool latent = p.kind != ProblemKind::grouped_query;
    PrefixGrouper grouper(
        {.on = true, .key_ps = 1, .row_heads = latent ? p.heads : p.heads / p.kv_heads}, page,
        count);
    args.prefixes = grouper.find(requests, row_requests, lists);
    savings = grouper.savings();
  }
};

/// A batch in which some requests share pages, as a tree: a request may begin with the pages of an
/// earlier one, down to any page that is full before its first row.
inline void share_randomly(Bf16Scene& s) {
  for (std::size_t r = 1; r < s.args.kv_lens.size(); ++r) {
    if (s.rng() % 5 == 0) continue;
    const auto of = s.rng() % r;
    const auto full = [&](std::size_t i) {
      const int rows = s.args.q_indptr[i + 1] - s.args.q_indptr[i];
      return std::max(0, s.args.kv_lens[i] - rows) / s.dims.page;
    };
    const int most = std::min(full(r), full(of));
    if (most > 0)
      share_pages(s, r, of, 1 + static_cast<int>(s.rng() % static_cast<unsigned>(most)));
  }
}

}  // namespace lathe::cuda
