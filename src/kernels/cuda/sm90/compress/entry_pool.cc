#include <algorithm>

#include "kernels/cuda/sm90/codec/codec_launch.h"
#include "kernels/cuda/sm90/compress/compress.h"
#include "layout/codec/codec.h"

namespace lathe::cuda {

Result<EntryPool> entry_pool(const PoolView& pool) {
  if (auto ok = check_pool("pool", pool); !ok) return ok.error();
  const std::int64_t dim = pool.layout.row_elems();
  const EncodeParams rows = encode_params({nullptr, DType::f32, 0, dim, dim}, {}, pool, {});
  const RunParams& first = rows.runs[0];
  const bool key = first.kind == RunKind::e4m3_f32 && rows.run_count == 1;
  const bool codes =
      first.kind == RunKind::e4m3_ue8m0 && (1 << first.tile_shift) * kChunk == kEntryTile;
  const bool parts = (codes || first.kind == RunKind::bf16) && rows.run_count == 2 &&
                     rows.runs[1].kind == RunKind::bf16;
  if ((!key && !parts) || !runs_aligned(rows.runs, rows.run_count)) {
    return Error{ErrorCode::unsupported, "pool.layout", "v4_fp8, mla_bf16 or index_fp8",
                 pool.layout.serialize(), "--device cpu"};
  }
  EntryPool out;
  out.pages = rows.pages;
  std::copy_n(rows.runs, rows.run_count, out.runs);
  out.pad_start = rows.pad_start;
  out.pad_step = rows.pad_step;
  out.pad_bytes = rows.pad_bytes;
  return out;
}

}  // namespace lathe::cuda
