// AttentionProblem: the attention of a layer, without the choice of kernel and cache layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/enum.h"
#include "base/result.h"
#include "layout/layout.h"

namespace lathe {

/// dense_latent       absorbed MLA over all keys of the request (DeepSeek V3)
/// sparse_latent      absorbed MLA over the top-k keys that an indexer selects (DeepSeek V3.2)
/// window_compressed  a sliding window of tokens, and compressed entries; keys = values (V4)
/// grouped_query      K and V heads shared by groups of query heads (Llama, Qwen)
#define LATHE_PROBLEM_KINDS(X) \
  X(dense_latent) X(sparse_latent) X(window_compressed) X(grouped_query)
LATHE_ENUM(ProblemKind, LATHE_PROBLEM_KINDS)

/// The form of a problem's keys in a cache. Which layouts hold it is in layout/layout_kinds.h.
constexpr KeyForm key_form(ProblemKind kind) {
  switch (kind) {
    case ProblemKind::dense_latent:
    case ProblemKind::sparse_latent:
      return KeyForm::latent;
    case ProblemKind::window_compressed:
      return KeyForm::latent_row;
    case ProblemKind::grouped_query:
      return KeyForm::per_head;
  }
  return KeyForm::latent;
}

/// The layouts that can hold a problem's keys.
constexpr EnumSet<LayoutKind> layouts_of(ProblemKind kind) {
  return layouts_holding(key_form(kind));
}

/// layouts_of(), the checkpoint's own precision first, then lower ones.
std::vector<LayoutKind> layouts_by_precision(ProblemKind kind);

/// Fields that a kind does not use are 0.
struct AttentionProblem {
  ProblemKind kind = ProblemKind::dense_latent;
  std::int32_t heads = 128;  // query heads of this rank

  // Latent problems: a cached row has a latent (nope), then a rotary part (rope).
  std::int32_t nope = 0;
  std::int32_t rope = 0;
  std::int32_t qk_nope_head = 0;  // width of a head's expanded (not absorbed) key, without rope
  std::int32_t v_head = 0;        // width of a head's expanded value

  // Sparse selection: keys per query row, and the indexer that selects them.
  std::int32_t top_k = 0;
  std::int32_t index_heads = 0;
  std::int32_t index_dim = 0;
  // sparse_latent: tokens that share an index key (GLM 5.3 Flash). A row selects among the keys of
  // whole groups, top_k tokens in all, and has its own group besides. 0: each token has a key.
  std::int32_t index_pool = 0;

  std::int32_t window = 0;  // keys of the sliding window, including the row's own; 0 = no window
  // grouped_query: positions are divided into chunks of `window`, and a row sees the keys of its
  // own chunk up to itself (Llama 4): some of the keys that a sliding window would have.
  bool chunked = false;
  std::int32_t compress_ratio =
      0;  // window_compressed: tokens per compressed entry; 0 = window only

  // grouped_query
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t v_head_dim = 0;

  bool sink = false;  // a logit per head is added to the softmax denominator
  float scale = 0;    // factor of q.k before the softmax

  /// Width of a key, and of a head's query.
  constexpr std::int32_t qk_dim() const {
    return kind == ProblemKind::grouped_query ? head_dim : nope + rope;
  }
  /// Width of a head's output. Absorbed MLA returns the latent; in V4 the key is the value.
  constexpr std::int32_t v_dim() const {
    switch (kind) {
      case ProblemKind::grouped_query:
        return v_head_dim;
      case ProblemKind::window_compressed:
        return nope + rope;
      case ProblemKind::dense_latent:
      case ProblemKind::sparse_latent:
        break;
    }
    return nope;
  }
  /// The first position whose key the row at `position` sees.
  constexpr std::int64_t first_key(std::int64_t position) const {
    if (window == 0 || position < window) return 0;
    return chunked ? position - position % window : position - window + 1;
  }
  /// True if there are two sources of keys, each with a pool of its own.
  constexpr bool two_sources() const {
    return kind == ProblemKind::window_compressed && compress_ratio > 0;
  }
  constexpr bool sparse() const { return top_k > 0; }
  /// Tokens for each key that the indexer ranks.
  constexpr std::int32_t tokens_per_index_key() const {
    return two_sources() ? compress_ratio : index_pool > 0 ? index_pool : 1;
  }
  /// Most index keys that a row selects.
  constexpr std::int32_t index_top_k() const { return index_pool > 0 ? top_k / index_pool : top_k; }
  /// Most keys in a row's list. A row's own group is listed until it has a key.
  constexpr std::int32_t listed_keys() const {
    return index_pool > 0 ? top_k + index_pool - 1 : top_k;
  }

  bool operator==(const AttentionProblem&) const = default;
};

/// The problems of published models.
AttentionProblem deepseek_v3_problem(std::int32_t heads = 128);
AttentionProblem deepseek_v32_problem(std::int32_t heads = 128);
AttentionProblem deepseek_v4_problem(std::int32_t heads = 64, std::int32_t compress_ratio = 4,
                                     std::int32_t top_k = 512);
AttentionProblem gqa_problem(std::int32_t heads = 32, std::int32_t kv_heads = 8,
                             std::int32_t head_dim = 128);

/// Errors: heads outside 1 to 128 (latent) or 1 to 1024 (grouped_query), or not a multiple of
/// kv_heads; dims that no layout accepts; a top-k, window or ratio that is negative, or missing
/// although the kind needs it; a scale that is not finite and positive.
Result<void> check_problem(const AttentionProblem& problem);

/// ", window 128", ", chunks of 8192", or nothing.
std::string window_text(const AttentionProblem& problem);

/// The layout of `kind` with the problem's dims. Error: the kind cannot hold the problem's keys.
Result<CacheLayout> layout_for(const AttentionProblem& problem, LayoutKind kind);

}  // namespace lathe
