// Types of the tiled CPU attention that are the same for every SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lathe {

/// Keys of a tile: four vectors of AVX-512. Tiles start at multiples of it, counted from the
/// request's key 0, whatever the rows or the chunk. The order of accumulation depends on this
/// alone.
inline constexpr std::size_t kTile = 64;

/// A running softmax in powers of two: sum = sum_i 2^(s_i - max). Empty: max = -inf, sum = 0.
struct SoftState {
  float max = -__builtin_inff();
  float sum = 0;
};

/// The keys of a tile that a row sees: begin .. end - 1.
struct RowRange {
  std::int32_t begin;
  std::int32_t end;
};

/// Cache lines of the next tile, to prefetch one at a time between the steps of this tile's
/// arithmetic. Prefetched in bursts they would fill the miss buffers, and arithmetic and memory
/// would wait for each other.
class LinesAhead {
 public:
  LinesAhead() = default;
  /// Adds `bytes` bytes at `offset` of each of kTile rows; skips null rows.
  void add(const std::uint8_t* const* rows, std::size_t offset, std::size_t bytes) {
    runs_[run_count_++] = {rows, offset, bytes};
  }
  void step() {
    if (line_ == end_ && !next_row()) return;
    __builtin_prefetch(line_, 0, 2);
    line_ += kLine < end_ - line_ ? kLine : end_ - line_;
  }

 private:
  static constexpr std::ptrdiff_t kLine = 64;
  struct Run {
    const std::uint8_t* const* rows;
    std::size_t offset;
    std::size_t bytes;
  };
  bool next_row() {
    for (; run_ < run_count_; ++run_, row_ = 0) {
      const Run& run = runs_[run_];
      while (row_ < kTile) {
        const std::uint8_t* row = run.rows[row_++];
        if (row == nullptr) continue;
        line_ = row + run.offset;
        end_ = line_ + run.bytes;
        return true;
      }
    }
    return false;
  }

  Run runs_[2] = {};
  int run_count_ = 0;
  int run_ = 0;
  std::size_t row_ = 0;
  const std::uint8_t* line_ = nullptr;
  const std::uint8_t* end_ = nullptr;
};

}  // namespace lathe
