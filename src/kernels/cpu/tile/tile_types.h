// Plain types of the tiled CPU attention, the same for every SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lathe {

/// Keys of a tile: four vectors of AVX-512. Tiles start at multiples of it, counted from a
/// request's key 0, whatever the rows or chunk: the order of accumulation depends on nothing else.
inline constexpr std::size_t kTile = 64;

/// A softmax under way, in powers of two: sum = sum_i 2^(s_i - max). Empty: max = -inf, sum = 0.
struct SoftState {
  float max = -__builtin_inff();
  float sum = 0;
};

/// Keys of a tile that a row sees: begin .. end-1.
struct RowRange {
  std::int32_t begin;
  std::int32_t end;
};

/// Cache lines of the next tile, prefetched one at a time between the steps of computing this one.
/// In bursts they would fill the miss buffers, and arithmetic and memory would wait for each other
/// in turn.
class LinesAhead {
 public:
  LinesAhead() = default;
  /// `bytes` from `offset` of each of kTile rows; null rows are left out.
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
