#include "kernels/cuda/sm90/matmul/few/few_codes_call.h"

#include <algorithm>

#include "base/integers.h"
#include "kernels/cuda/sm90/matmul/matmul_call.h"

namespace lathe::cuda {
namespace {

bool is_few_codes(const MatmulCall& c) {
  return c.w.dtype == DType::e4m3 && c.x.dtype == DType::bf16 && c.x.rows <= kFewTokens &&
         c.w.rows % (c.activation == nullptr ? kFewRows : kFewRows / 2) == 0;
}

// Shared memory: bytes before the sums, and of the sums of `units` units.
struct Room {
  std::int64_t before, of_unit;
  std::int64_t bytes(std::int64_t units) const { return before + units * of_unit; }
};

// The segments of K with which the busiest warp of a block of `units` units multiplies least. Fewer
// are preferred.
int choose_segments(std::int64_t units, std::int64_t chunks) {
  int best = 1;
  std::int64_t least = ceil_div(units, kFewCodesWarps) * chunks;
  for (int segments = 2; segments <= std::min<std::int64_t>(chunks, kFewCodesWarps); ++segments) {
    const std::int64_t turns = ceil_div(units * segments, kFewCodesWarps);
    const std::int64_t most = turns * ceil_div(chunks, segments);
    if (most < least) {
      least = most;
      best = segments;
    }
  }
  return best;
}

}  // namespace

std::optional<FewCodesLaunch> make_few_codes(std::span<const MatmulCall> calls, int split,
                                             int sms) {
  if (!std::ranges::all_of(calls, is_few_codes)) return std::nullopt;
  const RowsView& x = calls[0].x;
  const MatmulLaunch l = make_launch(calls, {split, kFewRows, kFewTokens, false}, sms);
  FewCodesLaunch out{};
  FewCodesParams& f = out.params;
  f.matmul = l.params;
  const MatmulParams& p = l.params;
  for (int i = 0; i < p.weight_count; ++i) {
    f.codes[i] = static_cast<const std::uint8_t*>(l.weights[i].base);
  }
  f.row_bytes = calls[0].w.cols;
  f.eight_rows = p.gate_step == 0 ? 8 * f.row_bytes : l.weights[0].turn_stride;
  f.x = reinterpret_cast<const std::uint16_t*>(x.data);
  f.x_stride = x.row_stride;
  // 32 bytes more, so that a warp reads 8 bytes of eight tokens without bank conflicts.
  f.x_row = 2 * p.chunks * kFewColumns + 32;
  const Room room{kFewCodesTokensAt + x.rows * f.x_row,
                  std::int64_t{p.chunks} * kFewRows * ceil_div(x.rows, 2) * 8};
  if (p.tiles == 0) return std::nullopt;
  out.instance.blocks = std::min(p.tiles, sms);
  const std::int64_t units = ceil_div(p.tiles, out.instance.blocks);
  // More tokens of one unit a block are as fast in tiles of wgmma.
  if (units == 1 && x.rows > 4) return std::nullopt;
  f.segments = choose_segments(units, p.chunks);
  f.sums_at = static_cast<std::int32_t>(room.before);
  // Without room for sums, whole units keep enough warps busy from five on.
  if (room.bytes(units) > kFewShared && units >= 5) f.segments = 1;
  const std::int64_t bytes = f.segments == 1 ? room.before : room.bytes(units);
  if (bytes > kFewShared) return std::nullopt;
  out.instance.shared_bytes = static_cast<int>(bytes);
  return out;
}

}  // namespace lathe::cuda
