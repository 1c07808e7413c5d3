#include "attn/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lathe {
namespace {

// YaRN's mscale with factor 40 and mscale_all_dim 1 (DeepSeek V3's config) is 0.1 ln 40 + 1. It is
// squared because it scales both q and k.
float deepseek_scale() {
  const double mscale = 0.1 * std::log(40.0) + 1.0;
  return static_cast<float>(mscale * mscale / std::sqrt(192.0));
}

AttentionProblem latent_problem(ProblemKind kind, std::int32_t heads) {
  AttentionProblem p;
  p.kind = kind;
  p.heads = heads;
  p.nope = 512;
  p.rope = 64;
  p.qk_nope_head = 128;
  p.v_head = 128;
  p.scale = deepseek_scale();
  return p;
}

Error bad(std::string field, std::string wanted, std::int64_t offered) {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted),
          fmt::format("{}", offered), ""};
}

}  // namespace

AttentionProblem deepseek_v3_problem(std::int32_t heads) {
  return latent_problem(ProblemKind::dense_latent, heads);
}

AttentionProblem deepseek_v32_problem(std::int32_t heads) {
  AttentionProblem p = latent_problem(ProblemKind::sparse_latent, heads);
  p.top_k = 2048;
  p.index_heads = 64;
  p.index_dim = 128;
  return p;
}

AttentionProblem deepseek_v4_problem(std::int32_t heads, std::int32_t compress_ratio,
                                     std::int32_t top_k) {
  AttentionProblem p;
  p.kind = ProblemKind::window_compressed;
  p.heads = heads;
  p.nope = 448;
  p.rope = 64;
  p.window = 128;
  p.compress_ratio = compress_ratio;
  // Layers with ratio 4 select entries; layers with ratio 128 attend to all entries.
  if (compress_ratio == 4) {
    p.top_k = top_k;
    p.index_heads = 64;
    p.index_dim = 128;
  }
  p.sink = true;
  p.scale = static_cast<float>(1.0 / std::sqrt(512.0));
  return p;
}

AttentionProblem gqa_problem(std::int32_t heads, std::int32_t kv_heads, std::int32_t head_dim) {
  AttentionProblem p;
  p.kind = ProblemKind::grouped_query;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.v_head_dim = head_dim;
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  return p;
}

Result<void> check_problem(const AttentionProblem& p) {
  const bool gqa = p.kind == ProblemKind::grouped_query;
  const std::int32_t max_heads = gqa ? 1024 : 128;
  if (p.heads < 1 || p.heads > max_heads) {
    return bad("heads", fmt::format("1 to {} per rank", max_heads), p.heads);
  }
  if (gqa && (p.kv_heads < 1 || p.heads % p.kv_heads != 0)) {
    return bad("kv_heads", fmt::format("a divisor of heads ({})", p.heads), p.kv_heads);
  }
  if (p.top_k < 0 || (p.kind == ProblemKind::sparse_latent && p.top_k == 0)) {
    return bad("top_k", "at least 1", p.top_k);
  }
  if (p.top_k > 0 && (gqa || p.kind == ProblemKind::dense_latent)) {
    return bad("top_k", fmt::format("0 for {}", name(p.kind)), p.top_k);
  }
  if (p.top_k > 0 && (p.index_heads < 1 || p.index_dim < 1)) {
    return bad(p.index_heads < 1 ? "index_heads" : "index_dim", "at least 1 where top_k is set",
               p.index_heads < 1 ? p.index_heads : p.index_dim);
  }
  if (p.index_pool < 0 || (p.index_pool > 0 && p.kind != ProblemKind::sparse_latent)) {
    return bad("index_pool", "0, or tokens of a sparse_latent problem's index key", p.index_pool);
  }
  if (p.index_pool > 0 && p.top_k % p.index_pool != 0) {
    return bad("top_k", fmt::format("a multiple of index_pool ({})", p.index_pool), p.top_k);
  }
  if (p.window < 0 || (p.kind == ProblemKind::window_compressed && p.window == 0)) {
    return bad("window", "at least 1", p.window);
  }
  if (p.window > 0 &&
      (p.kind == ProblemKind::dense_latent || p.kind == ProblemKind::sparse_latent)) {
    return bad("window", fmt::format("0 for {}", name(p.kind)), p.window);
  }
  if (p.chunked && (!gqa || p.window == 0)) {
    return Error{ErrorCode::invalid_argument, "chunked", "grouped_query with a window",
                 fmt::format("{}, window {}", name(p.kind), p.window), ""};
  }
  if (p.compress_ratio < 0) return bad("compress_ratio", "at least 0", p.compress_ratio);
  if (!std::isfinite(p.scale) || p.scale <= 0) {
    return Error{ErrorCode::invalid_argument, "scale", "a finite number above 0",
                 fmt::format("{}", p.scale), ""};
  }
  // Dims are legal if the bf16 layout accepts them; it has the fewest limits.
  const auto layout = layout_for(p, gqa ? LayoutKind::gqa_bf16 : LayoutKind::mla_bf16);
  if (!layout) return layout.error();
  return {};
}

std::string window_text(const AttentionProblem& p) {
  if (p.window == 0) return "";
  return fmt::format(", {} {}", p.chunked ? "chunks of" : "window", p.window);
}

Result<CacheLayout> layout_for(const AttentionProblem& p, LayoutKind kind) {
  if (!layouts_of(p.kind).contains(kind)) {
    return Error{ErrorCode::unsupported, fmt::format("layout of a {} cache", name(p.kind)),
                 layouts_of(p.kind).names(), std::string(name(kind)), ""};
  }
  LayoutDims dims{.nope = p.nope, .rope = p.rope};
  if (p.kind == ProblemKind::grouped_query) {
    dims = {.kv_heads = p.kv_heads, .head_dim = p.head_dim, .v_head_dim = p.v_head_dim};
  }
  return CacheLayout::make(kind, dims, default_policy(kind));
}

std::vector<LayoutKind> layouts_by_precision(ProblemKind problem) {
  std::vector<LayoutKind> out;
  for (const LayoutKind kind : enum_values<LayoutKind>()) {
    if (layouts_of(problem).contains(kind)) out.push_back(kind);
  }
  std::ranges::sort(out, {}, [](LayoutKind kind) { return layout_row(kind).order; });
  return out;
}

}  // namespace lathe
