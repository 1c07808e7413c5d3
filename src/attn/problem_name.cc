#include "attn/problem_name.h"

#include <fmt/format.h>

namespace lathe {

Result<AttentionProblem> problem_from_name(std::string_view attention, const ProblemOptions& o) {
  AttentionProblem p;
  const auto or_else = [](std::int32_t v, std::int32_t otherwise) {
    return v != 0 ? v : otherwise;
  };
  if (attention == "mla" || attention == name(ProblemKind::dense_latent)) {
    p = deepseek_v3_problem(or_else(o.heads, 128));
  } else if (attention == "dsa" || attention == "nsa" ||
             attention == name(ProblemKind::sparse_latent)) {
    p = deepseek_v32_problem(or_else(o.heads, 128));
  } else if (attention == "v4" || attention == name(ProblemKind::window_compressed)) {
    if (o.compress_ratio > 0 && o.compress_ratio != 4 && o.compress_ratio != 128) {
      return Error{ErrorCode::invalid_argument, "--compress-ratio",
                   "4, 128 or 0 (the window alone), which are DeepSeek V4's",
                   fmt::format("{}", o.compress_ratio), ""};
    }
    p = deepseek_v4_problem(or_else(o.heads, 64), o.compress_ratio >= 0 ? o.compress_ratio : 4);
  } else if (attention == "gqa" || attention == name(ProblemKind::grouped_query)) {
    p = gqa_problem(or_else(o.heads, 32), or_else(o.kv_heads, 8), or_else(o.head_dim, 128));
  } else {
    return Error{ErrorCode::invalid_argument, "--attention",
                 "one of mla, dsa, v4, gqa, " + known_names<ProblemKind>(),
                 fmt::format("\"{}\"", attention), ""};
  }
  const struct {
    bool given, takes;
    const char *flag, *of;
  } others[] = {
      {o.kv_heads != 0, p.kind == ProblemKind::grouped_query, "--kv-heads", "gqa"},
      {o.head_dim != 0, p.kind == ProblemKind::grouped_query, "--head-dim", "gqa"},
      {o.compress_ratio >= 0, p.kind == ProblemKind::window_compressed, "--compress-ratio", "v4"}};
  for (const auto& [given, takes, flag, of] : others) {
    if (!given || takes) continue;
    return Error{ErrorCode::invalid_argument, flag, fmt::format("--attention {} with it", of),
                 fmt::format("--attention {}", attention), ""};
  }
  if (o.top_k != 0) p.top_k = o.top_k;
  if (o.window != 0) p.window = o.window;
  if (o.sink) p.sink = true;
  return p;
}

}  // namespace lathe
