// Builds the parameters of the codec kernels from views. Internal to the codecs; arguments are
// checked already.
#pragma once

#include <span>

#include "kernels/cuda/sm90/codec/codec_params.h"
#include "layout/codec/codec_plan.h"
#include "layout/rope/rope.h"

namespace lathe::cuda {

RowsParams rows_params(const RowsView& rows);
PagesParams pages_params(const ConstPoolView& pool);
RopeParams rope_params(const float* table, std::int64_t table_positions, std::int32_t dim,
                       RopePairing pairing, std::span<const LocalPos> positions,
                       std::int64_t first);
/// `rope`: the part that rotates; half = 0: none.
EncodeParams encode_params(const RowsView& rows, std::span<const Slot> slots, const PoolView& pool,
                           const TensorScales& scales, const RopeParams& rope = {});
/// Whether an encoder that follows OrderParams::order exists for a call: it needs whole runs with
/// tiles and bf16 rows.
bool can_order(const EncodeParams& p, DType dtype);
/// Orders a call's tokens, in scratch of order_scratch_bytes() (codec.h).
OrderParams order_params(const EncodeParams& p, std::span<std::byte> scratch);
/// Writes heads of rows to rows: q to q_out with a change of type, or in place (in and out the
/// same) only the rotary parts. Slots and positions are per row.
EncodeParams rotate_params(const RowsView& in, const MutableRowsView& out, std::int64_t heads,
                           std::span<const Slot> slots, std::int64_t pool_slots, float scale,
                           const RopeParams& rope, bool in_place);
DecodeParams decode_params(const ConstPoolView& pool, std::span<const Slot> slots, Slot first,
                           const MutableRowsView& out, const TensorScales& scales);
RequantParams requant_params(const ConstPoolView& src, std::span<const Slot> src_slots,
                             const PoolView& dst, std::span<const Slot> dst_slots,
                             const TensorScales& src_scales, const TensorScales& dst_scales);
/// All planes, between pools of one layout, or within one. move_staging_bytes() in codec.h gives
/// the layout of a dense side.
MoveParams move_params(const ConstPoolView& from, std::span<const Slot> src, const PoolView& to,
                       std::span<const Slot> dst);
/// Pages as records, padding included, between pools of one layout and page size.
MoveParams page_params(const ConstPoolView& from, std::span<const PageId> src, const PoolView& to,
                       std::span<const PageId> dst);
/// Splits the rows of an otherwise complete launch into blocks of `block_rows` rows. 0: chooses as
/// many as fill the warps best, or fewer if there are too few rows to occupy the GPU.
void set_blocks(EncodeParams& p, std::int32_t block_rows = 0);
void set_blocks(DecodeParams& p, std::int32_t block_rows = 0);
void set_blocks(RequantParams& p, std::int32_t block_rows = 0);
void set_blocks(MoveParams& p, std::int32_t block_rows = 0);

}  // namespace lathe::cuda
