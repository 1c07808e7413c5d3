#include "attn/index_args.h"

#include <fmt/format.h>

#include "attn/check_count.h"
#include "attn/index_transform.h"
#include "base/integers.h"

namespace lathe {
namespace {

Error bad(std::string field, std::string wanted, std::string offered) {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered), ""};
}

Result<void> check_requests(const char* field, std::span<const std::int32_t> requests,
                            std::int64_t known) {
  for (std::size_t t = 0; t < requests.size(); ++t) {
    if (requests[t] >= -1 && requests[t] < known) continue;
    return bad(fmt::format("{}[{}]", field, t), fmt::format("-1 or one of {} requests", known),
               fmt::format("{}", requests[t]));
  }
  return {};
}

Result<void> check_pool(const ConstPoolView& pool, std::int32_t dim) {
  if (pool.layout.kind() != LayoutKind::index_fp8 || pool.layout.dims().dim != dim) {
    return bad("keys.pool.layout", fmt::format("index_fp8 of dim {}", dim),
               pool.layout.serialize());
  }
  if (auto ok = check_page_size(pool.page_size); !ok) return ok;
  if (pool.pages < 0 || pool.pages > kMaxSlots / pool.page_size) {
    return bad("keys.pool.pages", fmt::format("at most {} slots", kMaxSlots),
               fmt::format("{} pages of {}", pool.pages, pool.page_size));
  }
  if (pool.page_stride < pool.layout.page_stride(pool.page_size)) {
    return bad("keys.pool.page_stride",
               fmt::format("at least {}", pool.layout.page_stride(pool.page_size)),
               fmt::format("{}", pool.page_stride));
  }
  if (pool.data == nullptr && pool.pages > 0) {
    return bad("keys.pool.data", fmt::format("{} bytes", pool.bytes()), "a null pointer");
  }
  return {};
}

Result<void> check_lens(const IndexKeys& keys, const IndexRows& rows, std::int32_t dim) {
  const bool paged = keys.pool.has_value();
  const std::int64_t n =
      paged ? keys.page_table.width * keys.pool->page_size : std::ssize(keys.scales);
  if (!paged) {
    if (auto ok = check_count("keys.codes", keys.codes, n * dim); !ok) return ok;
  }
  for (std::size_t t = 0; t < rows.lens.size(); ++t) {
    const std::int64_t first = paged ? 0 : rows.first[t];
    const bool none = paged && rows.request[t] < 0;
    if (rows.lens[t] >= 0 && first >= 0 && (none || first + rows.lens[t] <= n)) continue;
    return bad(fmt::format("rows.lens[{}]", t), fmt::format("0 or more, ending within {} keys", n),
               fmt::format("{} from {}", rows.lens[t], first));
  }
  return {};
}

}  // namespace

Result<void> check_index_args(const IndexQuery& query, const IndexKeys& keys,
                              const IndexRows& rows) {
  if (query.heads < 1 || query.heads > 1024) {
    return bad("query.heads", "1 to 1024", fmt::format("{}", query.heads));
  }
  if (query.dim < 16 || query.dim > 4096 || query.dim % 16 != 0) {
    return bad("query.dim", "a multiple of 16 up to 4096", fmt::format("{}", query.dim));
  }
  const std::int64_t count = std::ssize(rows.lens);
  if (auto ok = check_count("query.weights", query.weights, count * query.heads); !ok) return ok;
  if (auto ok = check_count("query.codes", query.codes, count * query.heads * query.dim); !ok) {
    return ok;
  }
  if (keys.pool) {
    if (auto ok = check_pool(*keys.pool, query.dim); !ok) return ok;
    if (auto ok = check_count("rows.request", rows.request, count); !ok) return ok;
    if (auto ok = check_requests("rows.request", rows.request, keys.page_table.requests); !ok) {
      return ok;
    }
  } else if (auto ok = check_count("rows.first", rows.first, count); !ok) {
    return ok;
  }
  return check_lens(keys, rows, query.dim);
}

Result<void> check_index_target(const IndexTarget& target, std::int64_t rows) {
  switch (target.unit) {
    case IndexTargetUnit::local:
      return {};
    case IndexTargetUnit::slot:
      if (auto ok = check_pool_shape(target.pool); !ok) return ok;
      if (auto ok = check_count("target.request", target.request, rows); !ok) return ok;
      return check_requests("target.request", target.request, target.table.requests);
    case IndexTargetUnit::ragged_row:
      if (target.compact_rows < 0 || target.compact_rows > kMaxInt32) {
        return bad("target.compact_rows", fmt::format("0 to {}", kMaxInt32),
                   fmt::format("{}", target.compact_rows));
      }
      return check_count("target.row_offset", target.row_offset, rows);
  }
  return {};
}

std::int32_t in_target(const IndexTarget& target, std::int64_t t, LocalPos p) {
  const auto row = static_cast<std::size_t>(t);
  if (target.unit == IndexTargetUnit::local || p.value < 0) return p.value < 0 ? -1 : p.value;
  if (target.unit == IndexTargetUnit::slot) {
    if (target.request[row] < 0) return -1;
    return slot_at(target.table.row(target.request[row]), target.pool, p).value;
  }
  const std::int64_t at = std::int64_t{target.row_offset[row]} + p.value;
  return at >= 0 && at < target.compact_rows ? static_cast<std::int32_t>(at) : -1;
}

}  // namespace lathe
