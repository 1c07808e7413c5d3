#include "layout/rope/rope_write.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "layout/codec/codec_fast.h"
#include "layout/codec/codec_plan.h"
#include "layout/codec/codec_ref.h"
#include "layout/rope/rope_check.h"
#include "layout/rope/rope_rotate.h"

namespace lathe {
namespace {

Result<void> check(const RopeWrite& op, const PoolView& pool) {
  const RopeWriteShape shape{.k = op.k,
                             .q = op.q,
                             .q_out = op.q_out,
                             .positions = std::ssize(op.positions),
                             .slots = std::ssize(op.slots),
                             .table_dim = op.table == nullptr ? 0 : op.table->dim(),
                             .place = op.place,
                             .scales = op.scales,
                             .q_scale = op.q_scale};
  if (auto ok = check_rope_write(shape, pool); !ok) return ok;
  if (auto ok = check_slots("slots", op.slots, pool); !ok) return ok;
  if (op.table == nullptr) return {};
  return check_positions("positions", op.positions, *op.table);
}

}  // namespace

Result<void> rope_quantize_write(const RopeWrite& op, const PoolView& pool, CodecPath path) {
  if (auto ok = check(op, pool); !ok) return ok;
  const auto count = op.k.rows;
  const std::int64_t width = pool.layout.row_elems();
  const std::int64_t rotary = op.table == nullptr ? 0 : op.table->dim();
  const std::int64_t first = op.place == RopePlace::last ? width - rotary : 0;

  // A hole in positions or slots makes the token a hole.
  std::vector<LocalPos> positions(op.slots.size(), LocalPos(0));
  std::copy(op.positions.begin(), op.positions.end(), positions.begin());
  std::vector<Slot> slots(op.slots.begin(), op.slots.end());
  for (std::size_t t = 0; t < slots.size(); ++t) {
    if (positions[t].is_hole()) slots[t] = Slot();
    if (slots[t].is_hole()) positions[t] = LocalPos();
  }

  if (op.q.rows > 0) {
    rotate({op.q, op.q_out, positions, op.table, op.q.cols / width, first, RopeDirection::forward,
            1.0f / op.q_scale},
           path);
  }

  // A few rows at a time, so the rotated f32 rows stay in the L1 cache.
  constexpr std::int64_t kRows = 8;
  const auto floats = static_cast<std::size_t>(std::min(kRows, count) * width);
  const auto buffer = std::make_unique_for_overwrite<float[]>(floats);
  auto* bytes = reinterpret_cast<std::byte*>(buffer.get());
  for (std::int64_t t = 0; t < count; t += kRows) {
    const std::int64_t n = std::min(kRows, count - t);
    const auto at = static_cast<std::size_t>(t);
    const auto take = static_cast<std::size_t>(n);
    const RowsView k{op.k.row(t), op.k.dtype, n, width, op.k.row_stride};
    rotate({k,
            {bytes, DType::f32, n, width, width},
            std::span(positions).subspan(at, take),
            op.table,
            1,
            first,
            RopeDirection::forward,
            1},
           path);
    const EncodeJob job{{bytes, DType::f32, n, width, width},
                        std::span<const Slot>(slots).subspan(at, take),
                        pool,
                        op.scales};
    path == CodecPath::fast ? encode_fast(job) : encode_reference(job);
    if (op.tally != nullptr) op.tally->add(job.rows, job.slots, pool.layout, op.scales);
  }
  return {};
}

}  // namespace lathe
