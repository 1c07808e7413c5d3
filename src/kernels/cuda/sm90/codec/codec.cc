#include "kernels/cuda/sm90/codec/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/codec_launch.h"
#include "layout/codec/codec_plan.h"
#include "layout/pages/copy_records.h"
#include "layout/rope/rope_check.h"

namespace lathe::cuda {
namespace {

// Rejects strides beyond the kernels' 32-bit counts.
Result<void> check_stride(const char* field, const RowsView& rows) {
  const std::int64_t most = kMaxRowBytes * 8 / bits_of(rows.dtype);
  if (rows.row_stride <= most) return {};
  return Error{ErrorCode::out_of_range, fmt::format("{}.row_stride", field),
               fmt::format("at most {} elements, {} bytes", most, kMaxRowBytes),
               fmt::format("{}", rows.row_stride), ""};
}

Result<void> check_row_count(const char* field, std::int64_t rows) {
  if (rows <= kMaxCodecRows) return {};
  return Error{ErrorCode::out_of_range, field, fmt::format("at most {} rows", kMaxCodecRows),
               fmt::format("{}", rows), "split the call"};
}

Result<void> check_lists(std::size_t src, std::size_t dst) {
  if (src != dst) {
    return Error{ErrorCode::invalid_argument, "dst", fmt::format("{} entries, as many as src", src),
                 fmt::format("{}", dst), ""};
  }
  return check_row_count("src", static_cast<std::int64_t>(src));
}

Result<void> check_copy(const ConstPoolView& from, std::size_t src, const ConstPoolView& to,
                        std::size_t dst, CopyUnit unit) {
  if (auto ok = check_pool("from", from); !ok) return ok;
  if (auto ok = check_pool("to", to); !ok) return ok;
  if (auto ok = check_copied_pools(from, to, unit, {}); !ok) return ok;
  return check_lists(src, dst);
}

// Checks a view made by a caller; on the CPU a RopeTable is always valid.
Result<void> check_table(const RopeTableView& table) {
  const auto wrong = [](const char* member, std::string wanted, std::string offered) {
    return Error{ErrorCode::invalid_argument, fmt::format("table.{}", member), std::move(wanted),
                 std::move(offered), ""};
  };
  if (table.dim < 0) return wrong("dim", "0 or more", fmt::format("{}", table.dim));
  if (table.positions < 0) {
    return wrong("positions", "0 or more", fmt::format("{}", table.positions));
  }
  if (table.dim > 0 && table.positions > 0 && table.data == nullptr) {
    return wrong("data", "a pointer", "null");
  }
  return {};
}

std::string shape_of(const ConstPoolView& pool, std::int64_t rows) {
  return fmt::format("{}, {} rows, page {}", pool.layout.serialize(), rows, pool.page_size);
}

std::string shape_of(const RowsView& rows, DType out) {
  return fmt::format("{} rows of {}, {} to {}", rows.rows, rows.cols, name(rows.dtype), name(out));
}

Result<void> decode(const ConstPoolView& pool, std::span<const Slot> slots, Slot first,
                    const MutableRowsView& out, const TensorScales& scales, const char* kernel,
                    cudaStream_t stream, const std::source_location& where) {
  if (pool.slots() == 0) {  // kernels read slot 0 for a hole
    const auto bytes = [&](std::int64_t n) {
      return static_cast<std::size_t>(bytes_of(out.dtype, n));
    };
    return call_result(cudaMemset2DAsync(out.data, bytes(out.row_stride), 0, bytes(out.cols),
                                         static_cast<std::size_t>(out.rows), stream),
                       "clearing rows", where);
  }
  const cudaError_t status =
      launch_decode(decode_params(pool, slots, first, out, scales), out.dtype, stream);
  return launch_result(status, {kernel, shape_of(pool, out.rows), where});
}

// The counters as EncodeParams::counts expects them.
unsigned long long* words_of(ValueWords* counts) {
  static_assert(sizeof(ValueWords) == 3 * sizeof(unsigned long long));
  return counts == nullptr ? nullptr : &counts->stored;
}

// Rows from which ordering pays. Fewer rows are as fast unordered, because their destination fits
// in L2.
constexpr std::int64_t kOrderFrom = 1 << 16;

/// scratch: for ordering unordered slots; empty: do not order.
Result<void> encode(const RowsView& rows, std::span<const Slot> slots, const PoolView& pool,
                    const TensorScales& scales, std::span<std::byte> scratch, ValueWords* counts,
                    cudaStream_t stream, const std::source_location& where) {
  if (auto ok = check_pool("pool", pool); !ok) return ok;
  if (auto ok = check_rows("rows", rows, std::ssize(slots), pool.layout.row_elems()); !ok) {
    return ok;
  }
  if (auto ok = check_scales("scales", scales); !ok) return ok;
  if (auto ok = check_row_count("rows.rows", rows.rows); !ok) return ok;
  if (auto ok = check_stride("rows", rows); !ok) return ok;
  if (rows.rows == 0) return {};
  EncodeParams p = encode_params(rows, slots, pool, scales);
  p.counts = words_of(counts);
  if (!scratch.empty() && rows.rows >= kOrderFrom && can_order(p, rows.dtype)) {
    const OrderParams order = order_params(p, scratch);
    p.order = order.order;
    const cudaError_t listed = launch_order(order, stream);
    auto ok = launch_result(listed, {"order", shape_of(pool, rows.rows), where});
    if (!ok) return ok;
  }
  const cudaError_t status = launch_encode(p, rows.dtype, false, stream);
  return launch_result(status, {"encode", shape_of(pool, rows.rows), where});
}

}  // namespace

Result<void> encode_rows(const RowsView& rows, std::span<const Slot> slots, const PoolView& pool,
                         const TensorScales& scales, cudaStream_t stream, ValueWords* counts,
                         std::source_location where) {
  return encode(rows, slots, pool, scales, {}, counts, stream, where);
}

std::int64_t order_scratch_bytes(std::int64_t rows) {
  if (rows == 0) return 0;
  return (1 + order_blocks(rows)) * kOrderParts * std::int64_t{sizeof(std::uint32_t)} +
         rows * std::int64_t{sizeof(OrderEntry)};
}

Result<void> encode_scattered(const RowsView& rows, std::span<const Slot> slots,
                              const PoolView& pool, const TensorScales& scales,
                              std::span<std::byte> scratch, cudaStream_t stream,
                              std::source_location where) {
  const std::int64_t wanted = order_scratch_bytes(std::ssize(slots));
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(scratch.data()) % 16;
  if (std::ssize(scratch) < wanted || past != 0) {
    return Error{ErrorCode::invalid_argument, "scratch",
                 fmt::format("{} bytes or more at a multiple of 16", wanted),
                 fmt::format("{} bytes, {} past one", scratch.size(), past),
                 "order_scratch_bytes() says how many"};
  }
  return encode(rows, slots, pool, scales, scratch, nullptr, stream, where);
}

Result<void> decode_rows(const ConstPoolView& pool, Slot first, const MutableRowsView& out,
                         const TensorScales& scales, cudaStream_t stream,
                         std::source_location where) {
  if (auto ok = check_pool("pool", pool); !ok) return ok;
  if (auto ok = check_row_count("out.rows", out.rows); !ok) return ok;
  const std::int64_t count = std::max<std::int64_t>(out.rows, 0);
  if (auto ok = check_rows("out", read_only(out), count, pool.layout.row_elems()); !ok) return ok;
  if (auto ok = check_scales("scales", scales); !ok) return ok;
  if (auto ok = check_stride("out", read_only(out)); !ok) return ok;
  if (count == 0) return {};
  const std::int64_t end = std::min(pool.slots(), std::int64_t{1} << 31);
  if (!pool.holds(first) || count > end - first.value) {
    return Error{ErrorCode::out_of_range, "first",
                 fmt::format("{} slots within 0 to {}", count, end - 1),
                 fmt::format("{} slots from {}", count, first.value),
                 "gather_decode reads slots in any order"};
  }
  return decode(pool, {}, first, out, scales, "decode", stream, where);
}

Result<void> gather_decode(const ConstPoolView& pool, std::span<const Slot> slots,
                           const MutableRowsView& out, const TensorScales& scales,
                           cudaStream_t stream, std::source_location where) {
  if (auto ok = check_pool("pool", pool); !ok) return ok;
  if (auto ok = check_rows("out", read_only(out), std::ssize(slots), pool.layout.row_elems());
      !ok) {
    return ok;
  }
  if (auto ok = check_scales("scales", scales); !ok) return ok;
  if (auto ok = check_row_count("out.rows", out.rows); !ok) return ok;
  if (auto ok = check_stride("out", read_only(out)); !ok) return ok;
  if (slots.empty()) return {};
  return decode(pool, slots, Slot(), out, scales, "gather_decode", stream, where);
}

Result<void> requantize(const Requantize& op, cudaStream_t stream, std::source_location where) {
  if (auto ok = check_requantize(op.src, op.src_slots.size(), op.dst, op.dst_slots.size(),
                                 op.src_scales, op.dst_scales);
      !ok) {
    return ok;
  }
  if (auto ok = check_row_count("src_slots", std::ssize(op.src_slots)); !ok) return ok;
  if (op.report != nullptr) {
    const cudaError_t cleared = cudaMemsetAsync(op.report, 0, sizeof *op.report, stream);
    if (auto ok = call_result(cleared, "clearing the report", where); !ok) return ok;
  }
  if (op.src_slots.empty() || op.src.slots() == 0 || op.dst.slots() == 0) return {};
  RequantParams p =
      requant_params(op.src, op.src_slots, op.dst, op.dst_slots, op.src_scales, op.dst_scales);
  p.report = op.report == nullptr ? nullptr : &op.report->worst;
  const bool to_block = op.dst.layout.kind() == LayoutKind::mla_fp8_block;
  const auto shape =
      fmt::format("{} to {}", op.src.layout.name(), shape_of(op.dst, std::ssize(op.src_slots)));
  return launch_result(launch_requantize(p, to_block, stream), {"requantize", shape, where});
}

RequantReport requant_report(const RequantWords& words, std::span<const Slot> src_slots) {
  RequantReport report;
  report.saturated = static_cast<std::int64_t>(words.saturated);
  if (words.worst == 0) return report;
  report.worst_abs_error = std::bit_cast<float>(static_cast<std::uint32_t>(words.worst >> 32));
  const std::uint32_t row = 0xffffffffu - static_cast<std::uint32_t>(words.worst);
  report.worst_slot = src_slots[row];
  return report;
}

std::int64_t move_staging_bytes(const CacheLayout& layout, std::int64_t tokens) {
  // Each plane's records start at a multiple of 16.
  std::int64_t bytes = 0;
  for (int plane = 0; plane < layout.plane_count(); ++plane) {
    bytes += (tokens * layout.plane_bytes(plane) + 15) / 16 * 16;
  }
  return bytes;
}

Result<void> move_tokens(const PoolView& pool, std::span<const Slot> src, std::span<const Slot> dst,
                         std::byte* staging, cudaStream_t stream, std::source_location where) {
  if (auto ok = check_pool("pool", pool); !ok) return ok;
  if (auto ok = check_lists(src.size(), dst.size()); !ok) return ok;
  if (reinterpret_cast<std::uintptr_t>(staging) % 16 != 0) {
    return Error{ErrorCode::invalid_argument, "staging", "an address that is a multiple of 16",
                 fmt::format("{}", static_cast<const void*>(staging)), ""};
  }
  if (src.empty() || pool.slots() == 0) return {};
  const auto launch = [&](const MoveParams& p) {
    return launch_result(launch_move(p, stream), {"move", shape_of(pool, std::ssize(src)), where});
  };
  MoveParams p = move_params(pool, src, pool, dst);
  if (staging == nullptr) return launch(p);
  p.dense_dst = staging;
  if (auto ok = launch(p); !ok) return ok;
  std::swap(p.dense_src, p.dense_dst);
  return launch(p);
}

Result<void> copy_pages(const ConstPoolView& from, std::span<const PageId> src, const PoolView& to,
                        std::span<const PageId> dst, cudaStream_t stream,
                        std::source_location where) {
  if (auto ok = check_copy(from, src.size(), to, dst.size(), CopyUnit::page); !ok) return ok;
  const std::int64_t bytes = from.layout.page_stride(from.page_size);
  if (bytes > kMaxRowBytes) {
    return Error{ErrorCode::out_of_range, "from.page_size",
                 fmt::format("pages of at most {} bytes", kMaxRowBytes),
                 fmt::format("pages of {}", bytes), "copy slots"};
  }
  if (src.empty() || from.pages == 0 || to.pages == 0) return {};
  return launch_result(launch_move(page_params(from, src, to, dst), stream),
                       {"copy_pages", shape_of(from, std::ssize(src)), where});
}

Result<void> copy_slots(const ConstPoolView& from, std::span<const Slot> src, const PoolView& to,
                        std::span<const Slot> dst, cudaStream_t stream,
                        std::source_location where) {
  if (auto ok = check_copy(from, src.size(), to, dst.size(), CopyUnit::token); !ok) return ok;
  if (src.empty() || from.pages == 0 || to.pages == 0) return {};
  return launch_result(launch_move(move_params(from, src, to, dst), stream),
                       {"copy_slots", shape_of(from, std::ssize(src)), where});
}

Result<void> rope_quantize_write(const RopeWrite& op, const PoolView& pool, cudaStream_t stream,
                                 std::source_location where) {
  const RopeWriteShape shape{.k = op.k,
                             .q = op.q,
                             .q_out = op.q_out,
                             .positions = std::ssize(op.positions),
                             .slots = std::ssize(op.slots),
                             .table_dim = op.table.dim,
                             .place = op.place,
                             .scales = op.scales,
                             .q_scale = op.q_scale};
  if (auto ok = check_table(op.table); !ok) return ok;
  if (auto ok = check_rope_write(shape, pool); !ok) return ok;
  if (auto ok = check_row_count("k.rows", op.k.rows); !ok) return ok;
  if (auto ok = check_stride("k", op.k); !ok) return ok;
  if (auto ok = check_stride("q", op.q); !ok) return ok;
  if (auto ok = check_stride("q_out", read_only(op.q_out)); !ok) return ok;
  if (op.k.rows == 0) return {};
  const std::int64_t width = pool.layout.row_elems();
  const std::int64_t first = op.place == RopePlace::last ? width - op.table.dim : 0;
  const RopeParams rope = rope_params(op.table.data, op.table.positions, op.table.dim,
                                      op.table.pairing, op.positions, first);
  if (op.q.rows > 0) {
    const std::int64_t heads = op.q.cols / width;
    if (auto ok = check_row_count("q.rows times heads", op.q.rows * heads); !ok) return ok;
    const EncodeParams q =
        rotate_params(op.q, op.q_out, heads, op.slots, pool.slots(), op.q_scale, rope, false);
    const cudaError_t status = launch_encode(q, op.q.dtype, true, stream);
    if (auto ok = launch_result(status, {"rope_q", shape_of(op.q, op.q_out.dtype), where}); !ok) {
      return ok;
    }
  }
  EncodeParams k = encode_params(op.k, op.slots, pool, op.scales, rope);
  k.counts = words_of(op.counts);
  const cudaError_t status = launch_encode(k, op.k.dtype, true, stream);
  return launch_result(status, {"rope_write", shape_of(pool, op.k.rows), where});
}

Result<void> apply_rope(const RopeTableView& table, std::span<const LocalPos> positions,
                        const MutableRowsView& rows, std::int64_t heads, std::int64_t first,
                        RopeDirection direction, cudaStream_t stream, std::source_location where) {
  const RowsView view = read_only(rows);
  if (auto ok = check_table(table); !ok) return ok;
  if (auto ok = check_apply_rope(view, std::ssize(positions), table.dim, heads, first); !ok) {
    return ok;
  }
  if (auto ok = check_row_count("rows.rows", rows.rows); !ok) return ok;
  if (auto ok = check_stride("rows", view); !ok) return ok;
  if (auto ok = check_row_count("rows.rows times heads", rows.rows * heads); !ok) return ok;
  constexpr std::int32_t kMaxDim = 32 * kChunk;
  if (table.dim > kMaxDim) {
    return Error{ErrorCode::out_of_range, "table.dim", fmt::format("at most {}", kMaxDim),
                 fmt::format("{}", table.dim), "the CPU takes any"};
  }
  if (rows.rows == 0 || table.dim == 0) return {};
  RopeParams rope =
      rope_params(table.data, table.positions, table.dim, table.pairing, positions, first);
  rope.inverse = direction == RopeDirection::inverse;
  const EncodeParams p = rotate_params(view, rows, heads, {}, 0, 1, rope, true);
  const cudaError_t status = launch_encode(p, rows.dtype, true, stream);
  return launch_result(status, {"apply_rope", shape_of(view, rows.dtype), where});
}

}  // namespace lathe::cuda
