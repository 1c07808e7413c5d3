// Lists the keys that query rows see, tile by tile, in the oracle's order: positions in order (page
// table) or entries in order (index list), the second source after the first. Holes are skipped, so
// a tile has keys only.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "attn/attend.h"
#include "kernels/cpu/latent/latent_math.h"

namespace lathe {

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct LatentKeys {
  std::array<Slot, kLatentTile> index;  // Slot or RaggedRow values
  std::int64_t count = 0;
  std::int64_t from_main = 0;  // how many are from `main`; the rest is from `extra`

  std::span<const Slot> main() const {
    return std::span(index).first(static_cast<std::size_t>(from_main));
  }
  std::span<const Slot> extra() const {
    return std::span(index).subspan(static_cast<std::size_t>(from_main),
                                    static_cast<std::size_t>(count - from_main));
  }
};

/// Whether rows of one request can share tiles: each sees the positions from 0 to its own.
inline bool shares_keys(const AttendArgs& args) {
  return args.main.table_width > 0 && args.problem.window == 0 && !args.problem.two_sources();
}

/// Keys at positions first .. first + kLatentTile - 1 of a request, up to `end`. before[i]: how
/// many of them are before position first + i.
struct PositionKeys {
  LatentKeys keys;
  std::array<std::int32_t, kLatentTile + 1> before{};

  void fill(const KeySource& source, std::int64_t request, std::int64_t first, std::int64_t end);
};

/// The keys of one row, in order.
class RowKeys {
 public:
  RowKeys(const AttendArgs& args, std::int64_t row, std::int64_t request, std::int64_t position);

  /// An upper bound on the number of keys.
  std::int64_t bound() const { return (main_end_ - main_at_) + (extra_end_ - extra_at_); }
  void skip(std::int64_t n);
  /// The next keys, at most `most` <= kLatentTile.
  void fill(LatentKeys& keys, std::int64_t most);

 private:
  // Sets key and returns true, or returns false at the end.
  bool next_main(std::int32_t& key);
  bool next_extra(std::int32_t& key);

  const AttendArgs& args_;
  std::int64_t row_;
  std::int64_t request_;
  std::int64_t main_at_ = 0;  // position (page table) or entry (list)
  std::int64_t main_end_ = 0;
  std::int64_t main_keys_ = 0;  // number of valid values of a list
  std::int64_t extra_at_ = 0;
  std::int64_t extra_end_ = 0;
  std::int64_t extra_keys_ = 0;
};

}  // namespace lathe
