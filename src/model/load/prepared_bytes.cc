#include "model/load/prepared_bytes.h"

#include "base/integers.h"

namespace lathe {
namespace {

// Packed weights have scales, and zeros, of whole chunks of columns and of rows rounded up
// (kernels/cuda/sm90/matmul/pack/packed_weights.h).
std::int64_t packed_scales(const WeightView& w, std::int64_t group) {
  constexpr std::int64_t kChunk = 128, kRows = 16;
  return ceil_div(w.cols, kChunk) * (kChunk / group) * round_up(w.rows, kRows);
}

}  // namespace

std::int64_t prepared_bytes(std::int64_t bytes) { return round_up(bytes, 256); }

std::int64_t prepared_bytes(const WeightView& w, std::int64_t count) {
  std::int64_t sum = prepared_bytes(count * bytes_of(w.dtype, w.rows * w.cols));
  if (w.scales != nullptr) sum += prepared_bytes(count * w.scale_count() * 4);
  if (w.columns != nullptr) sum += prepared_bytes(count * w.cols * 4);
  const bool mx = w.mx_scales != nullptr;
  if (!mx && w.groups.data == nullptr) return sum;
  const std::int64_t scales = count * packed_scales(w, mx ? kMxBlock : w.groups.size);
  sum += prepared_bytes(scales * (mx ? 1 : bits_of(w.groups.dtype) / 8));
  if (w.groups.zeros != nullptr) sum += prepared_bytes(scales);
  return sum;
}

}  // namespace lathe
