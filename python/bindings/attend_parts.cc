#include "attend_parts.h"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>

#include <cmath>
#include <numeric>

#include "attn/problem_name.h"
#include "errors.h"
#include "kernels/all.h"

namespace lathe::python {

AttentionProblem problem_of(const std::string& attention, const Array& q, const CacheLayout& layout,
                            bool two_sources, const nb::dict& options) {
  q.need_rank(3, "[rows, heads, dim]");
  AttentionProblem p = value_or_raise(problem_from_name(attention));
  if (q.shape(1) < 1 || q.shape(1) > (1 << 20)) {
    q.refuse("at least 1 head, shape [rows, heads, dim]", q.describe());
  }
  p.heads = static_cast<std::int32_t>(q.shape(1));
  if (!options["planned"].is_none()) {
    const auto [heads, rows] = nb::cast<std::pair<std::int32_t, std::int64_t>>(options["planned"]);
    if (p.heads != heads) {
      q.refuse(fmt::format("the plan's {} heads", heads), fmt::format("{}", p.heads));
    }
    if (q.shape(0) > rows) {
      q.refuse(fmt::format("the plan's {} rows at most", rows), fmt::format("{}", q.shape(0)));
    }
  }
  const bool gqa = p.kind == ProblemKind::grouped_query;
  if (gqa ? !is_gqa(layout.kind()) : !is_latent(layout.kind())) {
    raise({ErrorCode::invalid_argument, "layout",
           fmt::format("a {} layout for {}", gqa ? "gqa" : "latent", attention),
           std::string(name(layout.kind())), ""});
  }
  if (gqa) {
    p.kv_heads = layout.dims().kv_heads;
    p.head_dim = layout.dims().head_dim;
    p.v_head_dim = layout.dims().v_head_dim;
    p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  } else {
    p.nope = layout.dims().nope;
    p.rope = layout.dims().rope;
  }
  if (p.kind == ProblemKind::window_compressed) p.compress_ratio = two_sources ? 4 : 0;
  p.sink = !options["sink"].is_none();
  if (!options["scale"].is_none()) p.scale = nb::cast<float>(options["scale"]);
  if (!options["window"].is_none()) p.window = nb::cast<std::int32_t>(options["window"]);
  if (!options["top_k"].is_none()) p.top_k = nb::cast<std::int32_t>(options["top_k"]);
  return p;
}

Batch::Batch(std::int64_t rows, bool by_list, nb::handle q_indptr, nb::handle kv_lens) {
  const bool no_lens = kv_lens.is_none();
  const bool no_indptr = q_indptr.is_none();
  if (!no_lens) lens = int32_list(Array("kv_lens", kv_lens), 1, "[requests]");
  if (!no_indptr) indptr = int32_list(Array("q_indptr", q_indptr), 1, "[requests + 1]");
  const auto all = static_cast<std::int32_t>(rows);
  if (no_lens && no_indptr && by_list) {
    indptr = {0, all};
    lens = {all};
  } else if (no_lens) {
    raise(
        {ErrorCode::invalid_argument, "kv_lens", "the number of keys of each request", "None", ""});
  } else if (no_indptr) {
    need_a_row_each(std::ssize(lens), rows);
    indptr.resize(lens.size() + 1);
    std::iota(indptr.begin(), indptr.end(), 0);
  }
}

void need_a_row_each(std::int64_t requests, std::int64_t rows) {
  if (requests == rows) return;
  raise({ErrorCode::invalid_argument, "q_indptr",
         "the first row of each request, as not each request has one row", "None", ""});
}

namespace {

bool reads(const Capability& c, const CacheLayout& layout) {
  return c.layouts.contains(layout.kind()) && !(c.homogeneous_only && !layout.homogeneous());
}

}  // namespace

Kernel find_kernel(const std::string& device, const std::string& kind, ProblemKind problem,
                   const std::optional<ConstPoolView>& pool,
                   const std::optional<ConstPoolView>& extra) {
  const Registry registry = all_kernels();
  const Kernel* kernel = registry.find(fmt::format("{}.{}.{}", device, name(problem), kind));
  if (kernel != nullptr && kernel->attend != nullptr) {
    EnumSet<LayoutKind> layouts;  // of this device's kernels of the kind
    for (const Kernel& k : registry.kernels()) {
      const Capability& c = k.capability;
      if (c.kind != kernel->capability.kind || c.devices != kernel->capability.devices ||
          !c.problems.contains(problem) || k.attend == nullptr) {
        continue;
      }
      if ((!pool || reads(c, pool->layout)) && (!extra || reads(c, extra->layout))) return k;
      for (const LayoutKind layout : enum_values<LayoutKind>()) {
        if (reads(c, CacheLayout(layout))) layouts.insert(layout);
      }
    }
    const bool in_main = pool && !layouts.contains(pool->layout.kind());
    raise({ErrorCode::unsupported, in_main || !extra ? "layout" : "extra.layout",
           fmt::format("{} for {} on {}", layouts.names(), kind, device),
           std::string(name((in_main || !extra ? pool : extra)->layout.kind())),
           "kind=\"inplace\" reads the layouts that it names; kind=\"gather\" compact rows"});
  }
  std::string known;
  for (const Kernel& k : registry.kernels()) {
    if (!k.capability.problems.contains(problem) || k.attend == nullptr) continue;
    const std::string pair =
        fmt::format("{} on {}", name(k.capability.kind), k.capability.devices.names());
    known += (known.empty() ? "" : ", ") + pair;
  }
  raise({ErrorCode::invalid_argument, "kind", fmt::format("for {}: {}", name(problem), known),
         fmt::format("{} on {}", kind, device), ""});
}

}  // namespace lathe::python
