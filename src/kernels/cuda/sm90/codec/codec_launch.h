// From views to the parameters of the codec kernels. Internal to the codecs; arguments have been
// checked.
#pragma once

#include <span>

#include "kernels/cuda/sm90/codec/codec_params.h"
#include "layout/codec_plan.h"
#include "layout/rope.h"

namespace lathe::cuda {

/// Rows of a block: as many as give every thread kUnroll chunks of work, but fewer where there are
/// too few rows to occupy the device.
std::int32_t block_rows(std::int64_t rows, std::int64_t chunks);

RowsParams rows_params(const RowsView& rows);
PagesParams pages_params(const ConstPoolView& pool);
RopeParams rope_params(const float* table, std::int64_t table_positions, std::int32_t dim,
                       RopePairing pairing, std::span<const LocalPos> positions,
                       std::int64_t first);
EncodeParams encode_params(const RowsView& rows, std::span<const Slot> slots, const PoolView& pool,
                           const TensorScales& scales);
DecodeParams decode_params(const ConstPoolView& pool, std::span<const Slot> slots, Slot first,
                           const MutableRowsView& out, const TensorScales& scales);
RequantParams requant_params(const ConstPoolView& src, std::span<const Slot> src_slots,
                             const PoolView& dst, std::span<const Slot> dst_slots,
                             const TensorScales& src_scales, const TensorScales& dst_scales);
/// One plane of a pool, in place.
MoveParams move_params(const PoolView& pool, int plane, std::span<const Slot> src,
                       std::span<const Slot> dst);
RotateParams rotate_params(const RowsView& in, const MutableRowsView& out, std::int64_t heads);

}  // namespace lathe::cuda
