#include "attn/pad_ragged.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>

#include "attn/check_count.h"

namespace lathe {
namespace {

Error bad(std::string field, std::string wanted, std::string offered) {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered), ""};
}

RowsView read_only(const MutableRowsView& v) {
  return {v.data, v.dtype, v.rows, v.cols, v.row_stride};
}

Result<void> check_view(const char* field, const RowsView& v) {
  const auto wrong = [&](const char* member, std::string wanted, std::string offered) {
    return bad(fmt::format("{}.{}", field, member), std::move(wanted), std::move(offered));
  };
  const auto is_count = [](std::int64_t n) { return n >= 0 && n <= INT32_MAX; };
  if (!is_count(v.rows)) {
    return wrong("rows", fmt::format("0 to {}", INT32_MAX), fmt::format("{}", v.rows));
  }
  if (!is_count(v.cols)) {
    return wrong("cols", fmt::format("0 to {}", INT32_MAX), fmt::format("{}", v.cols));
  }
  if (v.row_stride < v.cols) {
    return wrong("row_stride", fmt::format("at least {}", v.cols), fmt::format("{}", v.row_stride));
  }
  if (bits_of(v.dtype) < 8 && v.cols % 2 != 0) {
    return wrong("cols", "whole bytes", fmt::format("{} of {}", v.cols, name(v.dtype)));
  }
  if (bits_of(v.dtype) < 8 && v.row_stride % 2 != 0) {
    return wrong("row_stride", "whole bytes", fmt::format("{} of {}", v.row_stride, name(v.dtype)));
  }
  if (v.data == nullptr && v.rows > 0 && v.cols > 0) {
    return wrong("data", fmt::format("{} rows", v.rows), "a null pointer");
  }
  return {};
}

Result<void> check(const RowsView& ragged, std::span<const std::int32_t> q_indptr,
                   std::int64_t max_len, const RowsView& dense) {
  if (auto ok = check_pad_counts(ragged, q_indptr, max_len, dense); !ok) return ok;
  if (q_indptr[0] != 0) {
    return bad("q_indptr", "a list that starts with 0", fmt::format("{}", q_indptr[0]));
  }
  for (std::size_t r = 1; r < q_indptr.size(); ++r) {
    const std::int64_t rows = std::int64_t{q_indptr[r]} - q_indptr[r - 1];
    if (rows < 0 || rows > max_len) {
      return bad(fmt::format("q_indptr[{}]", r),
                 fmt::format("0 to max_len {} rows in a request", max_len),
                 fmt::format("{}", rows));
    }
  }
  if (q_indptr.back() > ragged.rows) {
    return bad("ragged.rows", fmt::format("at least {}", q_indptr.back()),
               fmt::format("{}", ragged.rows));
  }
  return {};
}

}  // namespace

Result<void> check_pad_counts(const RowsView& ragged, std::span<const std::int32_t> q_indptr,
                              std::int64_t max_len, const RowsView& dense) {
  if (auto ok = check_view("ragged", ragged); !ok) return ok;
  if (auto ok = check_view("dense", dense); !ok) return ok;
  if (ragged.dtype != dense.dtype) {
    return bad("dense.dtype", std::string(name(ragged.dtype)), std::string(name(dense.dtype)));
  }
  if (ragged.cols != dense.cols) {
    return bad("dense.cols", fmt::format("{}", ragged.cols), fmt::format("{}", dense.cols));
  }
  if (q_indptr.empty()) return bad("q_indptr", "a list that starts with 0", "an empty list");
  const std::int64_t requests = std::ssize(q_indptr) - 1;
  if (auto ok = check_range("max_len", max_len, 0); !ok) return ok;
  if (dense.rows != requests * max_len) {
    return bad("dense.rows", fmt::format("{} requests of {} rows", requests, max_len),
               fmt::format("{}", dense.rows));
  }
  return {};
}

Result<void> pad_ragged(const RowsView& ragged, std::span<const std::int32_t> q_indptr,
                        std::int64_t max_len, const MutableRowsView& dense) {
  if (auto ok = check(ragged, q_indptr, max_len, read_only(dense)); !ok) return ok;
  const auto bytes = static_cast<std::size_t>(bytes_of(ragged.dtype, ragged.cols));
  if (bytes == 0) return {};
  for (std::size_t r = 0; r + 1 < q_indptr.size(); ++r) {
    const std::int64_t rows = q_indptr[r + 1] - q_indptr[r];
    for (std::int64_t i = 0; i < max_len; ++i) {
      std::byte* to = dense.row(static_cast<std::int64_t>(r) * max_len + i);
      if (i < rows) {
        std::memcpy(to, ragged.row(q_indptr[r] + i), bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  }
  return {};
}

Result<void> unpad_ragged(const RowsView& dense, std::span<const std::int32_t> q_indptr,
                          std::int64_t max_len, const MutableRowsView& ragged) {
  if (auto ok = check(read_only(ragged), q_indptr, max_len, dense); !ok) return ok;
  const auto bytes = static_cast<std::size_t>(bytes_of(dense.dtype, dense.cols));
  if (bytes == 0) return {};
  for (std::size_t r = 0; r + 1 < q_indptr.size(); ++r) {
    for (std::int64_t i = 0; i < q_indptr[r + 1] - q_indptr[r]; ++i) {
      std::memcpy(ragged.row(q_indptr[r] + i),
                  dense.row(static_cast<std::int64_t>(r) * max_len + i), bytes);
    }
  }
  for (std::int64_t t = q_indptr.back(); t < ragged.rows; ++t) {
    std::memset(ragged.row(t), 0, bytes);
  }
  return {};
}

}  // namespace lathe
