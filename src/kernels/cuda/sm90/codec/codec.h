// The cache codecs on the GPU: layout/codec/codec.h and layout/rope/rope_write.h with the same
// views, lists and bytes. Everything is on the device and each call is a launch on a stream.
//
// Lists are on the device, where the host cannot read them without waiting. So two rules differ
// from the CPU:
//   - a slot or position outside its range is a hole, not an error
//   - a list of destinations repeats no slot except holes: a repeated slot gets undefined bytes
// Everything else is checked before anything is launched. Calls neither wait nor allocate, so they
// can be captured; a replay uses the arrays' contents at that time. Zero rows launch nothing.
//
// `where` is the caller, named in the message of a failed launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <source_location>
#include <span>

#include "base/result.h"
#include "base/rows_view.h"
#include "layout/codec/codec.h"
#include "layout/rope/rope.h"
#include "layout/rope/rope_write.h"

namespace lathe::cuda {

/// Most rows of a call.
inline constexpr std::int64_t kMaxCodecRows = std::int64_t{1} << 30;

/// Device counters of a ValueTally, for parts that are e4m3 with a tensor scale.
struct ValueWords {
  unsigned long long stored = 0;
  unsigned long long saturated = 0;
  unsigned long long flushed = 0;
};

/// counts: on the device, added to; null: do not count.
Result<void> encode_rows(const RowsView& rows, std::span<const Slot> slots, const PoolView& pool,
                         const TensorScales& scales, cudaStream_t stream,
                         ValueWords* counts = nullptr,
                         std::source_location where = std::source_location::current());

/// encode_rows() for unordered slots. If rows are bf16, aligned and many, and the layout has
/// scales, tokens are first ordered by the part of the pool that their slots are in, which costs
/// three more launches. scratch: at least order_scratch_bytes(rows) bytes, aligned to 16; contents
/// are ignored and overwritten.
Result<void> encode_scattered(const RowsView& rows, std::span<const Slot> slots,
                              const PoolView& pool, const TensorScales& scales,
                              std::span<std::byte> scratch, cudaStream_t stream,
                              std::source_location where = std::source_location::current());
/// 8.25 bytes a row plus at most 2 KiB.
std::int64_t order_scratch_bytes(std::int64_t rows);

/// A slot of the range outside the pool is an error, as on the CPU, because the host knows the
/// range.
Result<void> decode_rows(const ConstPoolView& pool, Slot first, const MutableRowsView& out,
                         const TensorScales& scales, cudaStream_t stream,
                         std::source_location where = std::source_location::current());

Result<void> gather_decode(const ConstPoolView& pool, std::span<const Slot> slots,
                           const MutableRowsView& out, const TensorScales& scales,
                           cudaStream_t stream,
                           std::source_location where = std::source_location::current());

/// Device counters of a RequantReport; copy them to the host and pass them to requant_report().
struct RequantWords {
  unsigned long long worst = 0;  // f32 bits of the error, then the complement of the row number
  unsigned long long saturated = 0;
};

struct Requantize {
  ConstPoolView src;
  std::span<const Slot> src_slots;  // [N]
  PoolView dst;
  std::span<const Slot> dst_slots;  // [N]
  TensorScales src_scales = {};
  TensorScales dst_scales = {};
  RequantWords* report = nullptr;  // on the device, overwritten; null: losses are not measured
};
Result<void> requantize(const Requantize& op, cudaStream_t stream,
                        std::source_location where = std::source_location::current());

/// src_slots: the host's copy of the call's list.
RequantReport requant_report(const RequantWords& words, std::span<const Slot> src_slots);

/// Copies token src[i] to token dst[i], in every plane; skips pairs with a hole. With a staging
/// buffer of staging_bytes() all sources are read before the first write, so the lists may overlap,
/// shift and permute. Without one (null) no slot may be the source of one pair and the destination
/// of another, and half the bytes move.
Result<void> move_tokens(const PoolView& pool, std::span<const Slot> src, std::span<const Slot> dst,
                         std::byte* staging, cudaStream_t stream,
                         std::source_location where = std::source_location::current());
std::int64_t move_staging_bytes(const CacheLayout& layout, std::int64_t tokens);

/// Copies page src[i] of `from` to page dst[i] of `to`, padding included; skips pairs with a hole.
/// A source may repeat. The pools share no bytes. `from` may be on another GPU that this one can
/// access, or another process's (ipc_memory.h); so may the sources of requantize() and
/// gather_decode(). Errors: another layout or page size; pages of more than kMaxRowBytes.
///
/// A Pool's layers are one after another, so that one call can copy pages of all layers: in a view
/// of layers * pages pages, page p of layer l is l * pages + p.
Result<void> copy_pages(const ConstPoolView& from, std::span<const PageId> src, const PoolView& to,
                        std::span<const PageId> dst, cudaStream_t stream,
                        std::source_location where = std::source_location::current());

/// Copies token src[i] of `from` to dst[i] of `to`, in every plane, by the rules of copy_pages(),
/// but page sizes may differ.
Result<void> copy_slots(const ConstPoolView& from, std::span<const Slot> src, const PoolView& to,
                        std::span<const Slot> dst, cudaStream_t stream,
                        std::source_location where = std::source_location::current());

/// A RopeTable's data on the device.
struct RopeTableView {
  const float* data = nullptr;  // [positions, dim]
  std::int64_t positions = 0;
  std::int32_t dim = 0;
  RopePairing pairing = RopePairing::interleaved;
};

/// lathe::RopeWrite on the device; a table of dim 0 means no rotation. One launch for k, one for q.
struct RopeWrite {
  RowsView k;
  RowsView q = {};
  std::span<const LocalPos> positions;
  std::span<const Slot> slots;
  RopeTableView table = {};
  RopePlace place = RopePlace::last;
  TensorScales scales = {};
  float q_scale = 1;
  MutableRowsView q_out = {};
  ValueWords* counts = nullptr;  // on the device, added to: values of the rotated rows of k
};
Result<void> rope_quantize_write(const RopeWrite& op, const PoolView& pool, cudaStream_t stream,
                                 std::source_location where = std::source_location::current());

/// In addition to the CPU's conditions, the table's dim is at most 256: a warp must read both
/// halves of every pair before it writes either.
Result<void> apply_rope(const RopeTableView& table, std::span<const LocalPos> positions,
                        const MutableRowsView& rows, std::int64_t heads, std::int64_t first,
                        RopeDirection direction, cudaStream_t stream,
                        std::source_location where = std::source_location::current());

}  // namespace lathe::cuda
