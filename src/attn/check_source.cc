#include "attn/check_source.h"

#include <fmt/format.h>

#include <cmath>

#include "attn/check_count.h"
#include "base/integers.h"
#include "layout/layout.h"

namespace lathe {
namespace {

// Number of elements of a cached row.
std::int32_t row_elems(const AttentionProblem& p) {
  return p.kind == ProblemKind::grouped_query ? p.kv_heads * (p.head_dim + p.v_head_dim)
                                              : p.qk_dim();
}

bool holds_keys_of(const CacheLayout& layout, const AttentionProblem& p) {
  const LayoutDims& d = layout.dims();
  if (p.kind == ProblemKind::grouped_query) {
    return is_gqa(layout.kind()) && d.kv_heads == p.kv_heads && d.head_dim == p.head_dim &&
           d.v_head_dim == p.v_head_dim;
  }
  return is_latent(layout.kind()) && d.nope == p.nope && d.rope == p.rope;
}

std::string wanted_layout(const AttentionProblem& p) {
  if (p.kind == ProblemKind::grouped_query) {
    return fmt::format("a gqa layout with kv_heads={}, head_dim={}, v_head_dim={}", p.kv_heads,
                       p.head_dim, p.v_head_dim);
  }
  return fmt::format("a latent layout with nope={}, rope={}", p.nope, p.rope);
}

Result<void> check_pool(const std::string& name, const ConstPoolView& pool,
                        const AttentionProblem& p) {
  if (!holds_keys_of(pool.layout, p)) {
    return bad_value(name + ".pool.layout", wanted_layout(p), pool.layout.serialize());
  }
  if (pool.page_size < 1 || pool.page_size > kMaxPageSize) {
    return bad_value(name + ".pool.page_size", fmt::format("1 to {}", kMaxPageSize),
                     fmt::format("{}", pool.page_size));
  }
  if (pool.pages < 0 || pool.pages > (kMaxInt32 + 1) / pool.page_size) {
    return bad_value(name + ".pool.pages", "0 or more, with slots that an int32 can number",
                     fmt::format("{} pages of {}", pool.pages, pool.page_size));
  }
  if (pool.page_stride < pool.layout.page_stride(pool.page_size)) {
    return bad_value(name + ".pool.page_stride",
                     fmt::format("at least {}", pool.layout.page_stride(pool.page_size)),
                     fmt::format("{}", pool.page_stride));
  }
  if (pool.data == nullptr && pool.pages > 0) {
    return bad_value(name + ".pool.data", fmt::format("{} bytes", pool.bytes()), "a null pointer");
  }
  return {};
}

Result<void> check_compact(const std::string& name, const RowsView& compact,
                           const AttentionProblem& p) {
  // Without rows every index is out of range and nothing is read, so the other fields may be unset.
  if (compact.rows == 0) return {};
  if (compact.dtype != DType::f32 && compact.dtype != DType::bf16) {
    return bad_value(name + ".compact.dtype", "f32 or bf16",
                     std::string(lathe::name(compact.dtype)));
  }
  if (compact.rows < 0) {
    return bad_value(name + ".compact.rows", "0 or more", fmt::format("{}", compact.rows));
  }
  if (compact.cols != row_elems(p)) {
    return bad_value(name + ".compact.cols", fmt::format("{}", row_elems(p)),
                     fmt::format("{}", compact.cols));
  }
  if (compact.row_stride < compact.cols) {
    return bad_value(name + ".compact.row_stride", fmt::format("at least {}", compact.cols),
                     fmt::format("{}", compact.row_stride));
  }
  if (compact.data == nullptr) {
    return bad_value(name + ".compact.data", fmt::format("{} rows", compact.rows),
                     "a null pointer");
  }
  return {};
}

// The field's name is built only for an error: building it always would allocate in every call.
Result<void> check_scale(const std::string& name, const char* field, float scale, bool carried) {
  if (carried ? !(std::isfinite(scale) && scale > 0) : scale != 1) {
    return bad_value(
        name + field,
        carried ? "a finite positive scale" : "1 (only per-tensor pools carry a scale)",
        fmt::format("{}", scale));
  }
  return {};
}

Result<void> check_page_table(const std::string& name, const KeySource& source,
                              const AttendArgs& args, const SourceRules& rules) {
  const std::int64_t requests = std::ssize(args.kv_lens);
  if (std::ssize(source.page_table) != requests * source.table_width) {
    return bad_value(name + ".page_table",
                     fmt::format("{} entries for {} requests of width {}",
                                 requests * source.table_width, requests, source.table_width),
                     fmt::format("{}", source.page_table.size()));
  }
  if (!rules.contents) return {};
  const std::int64_t page_size = source.pool ? source.pool->page_size : 1;
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t len = args.kv_lens[static_cast<std::size_t>(r)] / rules.tokens_per_key;
    if (len > source.table_width * page_size) {
      return bad_value(name + ".table_width",
                       fmt::format("at least {} pages for the {} keys of request {}",
                                   (len + page_size - 1) / page_size, len, r),
                       fmt::format("{}", source.table_width));
    }
  }
  return {};
}

Result<void> check_index_list(const std::string& name, const KeySource& source, std::int64_t rows,
                              bool contents) {
  if (std::ssize(source.indices) != rows * source.index_width) {
    return bad_value(name + ".indices",
                     fmt::format("{} entries for {} rows of width {}", rows * source.index_width,
                                 rows, source.index_width),
                     fmt::format("{}", source.indices.size()));
  }
  if (!source.index_lengths.empty() && std::ssize(source.index_lengths) != rows) {
    return bad_value(name + ".index_lengths", fmt::format("{} entries, or none", rows),
                     fmt::format("{}", source.index_lengths.size()));
  }
  for (std::size_t r = 0; contents && r < source.index_lengths.size(); ++r) {
    const std::int32_t length = source.index_lengths[r];
    if (length < 0 || length > source.index_width) {
      return bad_value(fmt::format("{}.index_lengths[{}]", name, r),
                       fmt::format("0 to the index width {}", source.index_width),
                       fmt::format("{}", length));
    }
  }
  return {};
}

}  // namespace

Result<void> check_source(const std::string& name, const KeySource& source, const AttendArgs& args,
                          SourceRules rules) {
  const AttentionProblem& p = args.problem;
  Result<void> keys =
      source.pool ? check_pool(name, *source.pool, p) : check_compact(name, source.compact, p);
  if (!keys) return keys;

  const bool scaled = source.pool && source.pool->layout.scale_policy() == ScalePolicy::per_tensor;
  const bool own_values = p.kind == ProblemKind::grouped_query;
  if (Result<void> ok = check_scale(name, ".key_scale", source.key_scale, scaled); !ok) return ok;
  if (scaled && !own_values) {
    if (source.value_scale != 1 && source.value_scale != source.key_scale) {
      return bad_value(
          name + ".value_scale",
          fmt::format("1 or the key_scale {}, as a latent row is key and value at once",
                      source.key_scale),
          fmt::format("{}", source.value_scale));
    }
  } else if (Result<void> ok = check_scale(name, ".value_scale", source.value_scale, scaled); !ok) {
    return ok;
  }

  for (const auto& [field, width] : {std::pair{".table_width", source.table_width},
                                     std::pair{".index_width", source.index_width}}) {
    if (width < 0 || width > kMaxInt32) {
      return bad_value(name + field, fmt::format("0 to {}", kMaxInt32), fmt::format("{}", width));
    }
  }
  if (source.table_width > 0 && source.index_width > 0) {
    return bad_value(name, "a page table or an index list", "both");
  }
  if (source.table_width > 0 && !rules.page_table) {
    return bad_value(name + ".page_table", "no page table: an index list names these keys",
                     fmt::format("a table of width {}", source.table_width));
  }
  if (source.table_width > 0 && !source.pool) {
    return bad_value(name + ".page_table", "a pool, which a page table needs", "a compact buffer",
                     "compact rows are named by an index list");
  }
  if (source.index_width > 0 && !rules.index_list) {
    return bad_value(name + ".indices", "no index list: a page table names these keys",
                     fmt::format("a list of width {}", source.index_width));
  }
  // A source with neither page table nor lists is checked as a page table of width 0, if it may
  // have one. That is wide enough only if no request has keys, so a forgotten table is an error.
  const bool by_index = source.index_width > 0 || !rules.page_table;
  Result<void> list = check_index_list(name, source, args.q.rows, rules.contents);
  if (!list || by_index) return list;
  return check_page_table(name, source, args, rules);
}

}  // namespace lathe
