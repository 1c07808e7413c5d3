// The cache codecs on the GPU: layout/codec/codec.h and layout/rope/rope_write.h with the same
// views, lists and bytes, all on the device, as launches on a stream.
//
// The differences from the CPU follow from lists that lie on the device, which the host cannot read
// without waiting:
//   - a slot or position outside its range is a hole, not an error
//   - a list that is written to repeats no slot but holes: otherwise that slot's bytes are
//   undefined
// Everything else is checked before anything is launched. A launch neither waits nor allocates, so
// it can be captured; a replay sees what the arrays hold then. Zero rows launch nothing.
//
// `where` is the caller, for the message of a launch that fails.
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

/// Rows of one call.
inline constexpr std::int64_t kMaxCodecRows = std::int64_t{1} << 30;

/// What the device counts for a ValueTally, of parts that are e4m3 at a tensor scale.
struct ValueWords {
  unsigned long long stored = 0;
  unsigned long long saturated = 0;
  unsigned long long flushed = 0;
};

/// counts: on the device, added to; null: nothing is counted.
Result<void> encode_rows(const RowsView& rows, std::span<const Slot> slots, const PoolView& pool,
                         const TensorScales& scales, cudaStream_t stream,
                         ValueWords* counts = nullptr,
                         std::source_location where = std::source_location::current());

/// encode_rows() for unordered slots: where rows are bf16, aligned and many, and codes have scales,
/// tokens are first ordered by the part of the pool that their slots lie in, which takes three more
/// launches. scratch: order_scratch_bytes(rows) bytes or more, at a multiple of 16; its contents
/// don't matter.
Result<void> encode_scattered(const RowsView& rows, std::span<const Slot> slots,
                              const PoolView& pool, const TensorScales& scales,
                              std::span<std::byte> scratch, cudaStream_t stream,
                              std::source_location where = std::source_location::current());
/// 8.25 bytes a row, and at most 2 KiB more.
std::int64_t order_scratch_bytes(std::int64_t rows);

/// A slot of the range that is outside the pool is an error, as on the CPU, because the host sees a
/// range.
Result<void> decode_rows(const ConstPoolView& pool, Slot first, const MutableRowsView& out,
                         const TensorScales& scales, cudaStream_t stream,
                         std::source_location where = std::source_location::current());

Result<void> gather_decode(const ConstPoolView& pool, std::span<const Slot> slots,
                           const MutableRowsView& out, const TensorScales& scales,
                           cudaStream_t stream,
                           std::source_location where = std::source_location::current());

/// What the device counts for a RequantReport; read it back and give it to requant_report().
struct RequantWords {
  unsigned long long worst = 0;  // f32 bits of the error above the complement of the row's number
  unsigned long long saturated = 0;
};

struct Requantize {
  ConstPoolView src;
  std::span<const Slot> src_slots;  // [N]
  PoolView dst;
  std::span<const Slot> dst_slots;  // [N]
  TensorScales src_scales = {};
  TensorScales dst_scales = {};
  RequantWords* report =
      nullptr;  // on the device, overwritten; null: what was lost is not measured
};
Result<void> requantize(const Requantize& op, cudaStream_t stream,
                        std::source_location where = std::source_location::current());

/// src_slots: the list that the call had, as the host knows it.
RequantReport requant_report(const RequantWords& words, std::span<const Slot> src_slots);

/// Token dst[i] becomes a copy of token src[i], every plane; a pair with a hole is skipped. With a
/// staging buffer of staging_bytes() all sources are read before the first write, so the lists may
/// overlap, shift and permute. Without one (null) no slot may be both a source and a destination of
/// different pairs, and half the bytes move.
Result<void> move_tokens(const PoolView& pool, std::span<const Slot> src, std::span<const Slot> dst,
                         std::byte* staging, cudaStream_t stream,
                         std::source_location where = std::source_location::current());
std::int64_t move_staging_bytes(const CacheLayout& layout, std::int64_t tokens);

/// A RopeTable's data on the device.
struct RopeTableView {
  const float* data = nullptr;  // [positions, dim]
  std::int64_t positions = 0;
  std::int32_t dim = 0;
  RopePairing pairing = RopePairing::interleaved;
};

/// lathe::RopeWrite; a table of dim 0 means no rotation. One launch for k, one for q.
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
  ValueWords* counts = nullptr;  // on the device: the rotated rows of k are added
};
Result<void> rope_quantize_write(const RopeWrite& op, const PoolView& pool, cudaStream_t stream,
                                 std::source_location where = std::source_location::current());

/// Beyond the CPU's conditions the table's dim is at most 256: a warp reads both halves of every
/// pair before it writes one.
Result<void> apply_rope(const RopeTableView& table, std::span<const LocalPos> positions,
                        const MutableRowsView& rows, std::int64_t heads, std::int64_t first,
                        RopeDirection direction, cudaStream_t stream,
                        std::source_location where = std::source_location::current());

}  // namespace lathe::cuda
