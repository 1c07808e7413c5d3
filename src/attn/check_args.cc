#include "attn/check_args.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <utility>

#include "attn/check_count.h"
#include "attn/check_source.h"

namespace lathe {
namespace {

Result<void> at_least(const char* field, std::int32_t value, std::int32_t least) {
  if (value >= least) return {};
  return bad_value(fmt::format("problem.{}", field), fmt::format("at least {}", least),
                   fmt::format("{}", value));
}

template <std::size_t N>
Result<void> all_of(const Result<void> (&checks)[N]) {
  for (const Result<void>& check : checks) {
    if (!check) return check;
  }
  return {};
}

// Checks only what this file's arithmetic relies on. check_problem() checks a model's problem.
Result<void> check_dims(const AttentionProblem& p, EnumSet<ProblemKind> kinds) {
  if (!kinds.contains(p.kind)) {
    return Error{ErrorCode::unsupported, "problem.kind", kinds.names(), std::string(name(p.kind)),
                 ""};
  }
  if (!(std::isfinite(p.scale) && p.scale > 0)) {
    return bad_value("problem.scale", "a finite positive scale", fmt::format("{}", p.scale));
  }
  if (p.window != 0 &&
      (p.kind == ProblemKind::dense_latent || p.kind == ProblemKind::sparse_latent)) {
    return bad_value("problem.window", fmt::format("0 for {}", name(p.kind)),
                     fmt::format("{}", p.window));
  }
  if (p.chunked && (p.kind != ProblemKind::grouped_query || p.window < 1)) {
    return bad_value("problem.chunked", "false, or grouped_query with a window", "true");
  }
  if (p.kind != ProblemKind::grouped_query) {
    return all_of({at_least("heads", p.heads, 1), at_least("nope", p.nope, 1),
                   at_least("rope", p.rope, 0), at_least("window", p.window, 0),
                   at_least("compress_ratio", p.compress_ratio, 0)});
  }
  if (Result<void> ok =
          all_of({at_least("heads", p.heads, 1), at_least("kv_heads", p.kv_heads, 1),
                  at_least("head_dim", p.head_dim, 1), at_least("v_head_dim", p.v_head_dim, 1),
                  at_least("window", p.window, 0)});
      !ok) {
    return ok;
  }
  if (p.heads % p.kv_heads != 0) {
    return bad_value("problem.heads", fmt::format("a multiple of the {} kv_heads", p.kv_heads),
                     fmt::format("{}", p.heads));
  }
  return {};
}

Result<void> check_batch(const AttendArgs& args, bool contents) {
  const std::size_t requests = args.kv_lens.size();
  if (args.q_indptr.size() != requests + 1) {
    return bad_value("q_indptr", fmt::format("{} entries for {} requests", requests + 1, requests),
                     fmt::format("{}", args.q_indptr.size()));
  }
  if (!contents) return {};
  if (args.q_indptr[0] != 0) {
    return bad_value("q_indptr[0]", "0", fmt::format("{}", args.q_indptr[0]));
  }
  for (std::size_t r = 0; r < requests; ++r) {
    const std::int64_t rows = std::int64_t{args.q_indptr[r + 1]} - args.q_indptr[r];
    if (rows < 0) {
      return bad_value(fmt::format("q_indptr[{}]", r + 1),
                       fmt::format("at least {}, the entry before", args.q_indptr[r]),
                       fmt::format("{}", args.q_indptr[r + 1]));
    }
    if (args.kv_lens[r] != 0 && args.kv_lens[r] < rows) {
      return bad_value(fmt::format("kv_lens[{}]", r),
                       fmt::format("0, or at least the {} rows that the request brings", rows),
                       fmt::format("{}", args.kv_lens[r]),
                       "a row's own key is in the cache before attention");
    }
  }
  if (args.q_indptr[requests] != args.q.rows) {
    return bad_value(fmt::format("q_indptr[{}]", requests),
                     fmt::format("{} rows of q", args.q.rows),
                     fmt::format("{}", args.q_indptr[requests]));
  }
  return {};
}

template <class Byte>
Result<void> check_rows(const std::string& field, const BasicRowsView<Byte>& view,
                        EnumSet<DType> dtypes, std::int64_t rows, std::int64_t cols) {
  if (!dtypes.contains(view.dtype)) {
    return bad_value(field + ".dtype", dtypes.names(), std::string(name(view.dtype)));
  }
  if (view.rows != rows || rows < 0) {
    return bad_value(field + ".rows", rows < 0 ? "0 or more" : fmt::format("{}", rows),
                     fmt::format("{}", view.rows));
  }
  if (view.cols != cols) {
    return bad_value(field + ".cols", fmt::format("{}", cols), fmt::format("{}", view.cols));
  }
  if (view.row_stride < cols) {
    return bad_value(field + ".row_stride", fmt::format("at least {}", cols),
                     fmt::format("{}", view.row_stride));
  }
  if (view.data == nullptr && rows > 0) {
    return bad_value(field + ".data", fmt::format("{} rows", rows), "a null pointer");
  }
  return {};
}

// Checks everything but the key sources: q has q_width elements per head, out has out_width.
Result<void> check_tensors(const AttendArgs& args, std::int32_t q_width, std::int32_t out_width,
                           bool contents = true) {
  const std::int64_t heads = args.problem.heads;
  const std::int64_t rows = args.q.rows;
  if (Result<void> ok =
          check_rows("q", args.q, {DType::f32, DType::bf16, DType::e4m3}, rows, heads * q_width);
      !ok) {
    return ok;
  }
  const bool scaled = args.q.dtype == DType::e4m3;
  if (scaled ? !(std::isfinite(args.q_scale) && args.q_scale > 0) : args.q_scale != 1) {
    return bad_value("q_scale",
                     scaled ? "a finite positive scale" : "1 (only an e4m3 q has a scale)",
                     fmt::format("{}", args.q_scale));
  }
  if (Result<void> ok = check_batch(args, contents); !ok) return ok;
  if (Result<void> ok = check_rows("out", args.out, {DType::f64, DType::f32, DType::bf16}, rows,
                                   heads * out_width);
      !ok) {
    return ok;
  }
  if (args.lse.data != nullptr) {
    if (Result<void> ok = check_rows("lse", args.lse, {DType::f64, DType::f32}, rows, heads); !ok) {
      return ok;
    }
  }
  const std::int64_t sinks = args.problem.sink ? heads : 0;
  if (std::ssize(args.sink) != sinks) {
    return bad_value("sink",
                     args.problem.sink ? fmt::format("{} logits, one per head", sinks)
                                       : "none, as problem.sink is false",
                     fmt::format("{}", args.sink.size()));
  }
  return {};
}

Result<void> check_no_extra(const AttendArgs& args) {
  if (args.extra.pool || args.extra.compact.data != nullptr || args.extra.table_width != 0 ||
      args.extra.index_width != 0) {
    return bad_value("extra",
                     "no second source (only window_compressed with compress_ratio > 0 has one)",
                     "one");
  }
  return {};
}

Result<void> check_weights(const char* field, std::span<const float> weights, std::int64_t heads,
                           std::int64_t width, std::int64_t nope) {
  if (std::ssize(weights) != heads * width * nope) {
    return bad_value(fmt::format("expansion.{}", field),
                     fmt::format("{} x {} x {} elements", heads, width, nope),
                     fmt::format("{}", weights.size()));
  }
  return {};
}

Result<void> check_latent(const AttendArgs& args, bool contents) {
  const AttentionProblem& p = args.problem;
  if (Result<void> ok = check_dims(p, {ProblemKind::dense_latent, ProblemKind::sparse_latent,
                                       ProblemKind::window_compressed});
      !ok) {
    return ok;
  }
  if (Result<void> ok = check_tensors(args, p.qk_dim(), p.v_dim(), contents); !ok) return ok;
  if (Result<void> ok = check_source("main", args.main, args, {.contents = contents}); !ok) {
    return ok;
  }
  if (!p.two_sources()) return check_no_extra(args);
  // Neither a page table nor a list: there is no entry yet.
  return check_source("extra", args.extra, args,
                      {.page_table = args.extra.table_width > 0,
                       .contents = contents,
                       .tokens_per_key = p.compress_ratio});
}

Result<void> check_gqa(const AttendArgs& args, bool contents) {
  const AttentionProblem& p = args.problem;
  if (Result<void> ok = check_dims(p, {ProblemKind::grouped_query}); !ok) return ok;
  if (Result<void> ok = check_tensors(args, p.head_dim, p.v_head_dim, contents); !ok) return ok;
  if (Result<void> ok = check_source("main", args.main, args, {.contents = contents}); !ok) {
    return ok;
  }
  return check_no_extra(args);
}

Result<void> check_ragged(const AttendArgs& args, bool contents) {
  const AttentionProblem& p = args.problem;
  if (Result<void> ok = check_dims(p, {ProblemKind::dense_latent, ProblemKind::sparse_latent});
      !ok) {
    return ok;
  }
  if (Result<void> ok =
          all_of({at_least("qk_nope_head", p.qk_nope_head, 1), at_least("v_head", p.v_head, 1)});
      !ok) {
    return ok;
  }
  if (Result<void> ok = check_tensors(args, p.qk_nope_head + p.rope, p.v_head, contents); !ok) {
    return ok;
  }
  if (contents && p.kind == ProblemKind::sparse_latent) {
    for (std::size_t r = 0; r < args.kv_lens.size(); ++r) {
      if (args.kv_lens[r] > p.top_k) {
        return Error{
            ErrorCode::unsupported, fmt::format("kv_lens[{}]", r),
            fmt::format("a context of at most top_k = {} keys", p.top_k),
            fmt::format("a context of {}", args.kv_lens[r]),
            "beyond top_k the selection leaves keys out; use a kind that takes index lists"};
      }
    }
  }
  const SourceRules rules{.index_list = false, .contents = contents};
  if (Result<void> ok = check_source("main", args.main, args, rules); !ok) return ok;
  return check_no_extra(args);
}

}  // namespace

Result<void> check_latent_args(const AttendArgs& args) { return check_latent(args, true); }

Result<void> check_latent_shapes(const AttendArgs& args) { return check_latent(args, false); }

Result<void> check_gqa_args(const AttendArgs& args) { return check_gqa(args, true); }

Result<void> check_gqa_shapes(const AttendArgs& args) { return check_gqa(args, false); }

Result<void> check_ragged_args(const AttendArgs& args) {
  const AttentionProblem& p = args.problem;
  if (Result<void> ok = check_ragged(args, true); !ok) return ok;
  return all_of({check_weights("w_uk", args.expansion.w_uk, p.heads, p.qk_nope_head, p.nope),
                 check_weights("w_uv", args.expansion.w_uv, p.heads, p.v_head, p.nope)});
}

Result<void> check_ragged_shapes(const AttendArgs& args) { return check_ragged(args, false); }

}  // namespace lathe
