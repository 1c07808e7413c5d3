#include "attend_parts.h"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>

#include <optional>
#include <utility>

#include "errors.h"

namespace lathe::python {

AttentionProblem problem_of(const std::string& attention, const Array& q, const CacheLayout& layout,
                            bool two_sources, const nb::dict& options) {
  q.need_rank(3, "[rows, heads, dim]");
  if (q.shape(1) < 1 || q.shape(1) > (1 << 20)) {
    q.refuse("at least 1 head, shape [rows, heads, dim]", q.describe());
  }
  AttentionProblem p = value_or_raise(
      problem_of_call(attention, layout, static_cast<std::int32_t>(q.shape(1)), two_sources));
  if (!options["planned"].is_none()) {
    const auto [heads, rows] = nb::cast<std::pair<std::int32_t, std::int64_t>>(options["planned"]);
    if (p.heads != heads) {
      q.refuse(fmt::format("the plan's {} heads", heads), fmt::format("{}", p.heads));
    }
    if (q.shape(0) > rows) {
      q.refuse(fmt::format("the plan's {} rows at most", rows), fmt::format("{}", q.shape(0)));
    }
  }
  p.sink = !options["sink"].is_none();
  if (!options["scale"].is_none()) p.scale = nb::cast<float>(options["scale"]);
  if (!options["window"].is_none()) p.window = nb::cast<std::int32_t>(options["window"]);
  if (!options["top_k"].is_none()) p.top_k = nb::cast<std::int32_t>(options["top_k"]);
  return p;
}

LseConvention convention_of(const nb::dict& options) {
  return {.base_2 = nb::cast<bool>(options["lse_base_2"]),
          .empty_plus_inf = nb::cast<bool>(options["empty_lse_plus_inf"])};
}

CallBatch batch_of(std::int64_t rows, bool by_list, nb::handle q_indptr, nb::handle kv_lens) {
  std::optional<std::vector<std::int32_t>> indptr;
  std::optional<std::vector<std::int32_t>> lens;
  if (!kv_lens.is_none()) lens = int32_list(Array("kv_lens", kv_lens), 1, "[requests]");
  if (!q_indptr.is_none()) indptr = int32_list(Array("q_indptr", q_indptr), 1, "[requests + 1]");
  return value_or_raise(CallBatch::of(rows, by_list, std::move(indptr), std::move(lens)));
}

}  // namespace lathe::python
