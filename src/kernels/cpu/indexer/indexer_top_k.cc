// index_top_k() and index_select(): threads select from rows, or from parts of a row's keys.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/indexer/indexer.h"
#include "kernels/cpu/indexer/indexer_select.h"
#include "kernels/cpu/indexer/indexer_walk.h"

namespace lathe {
namespace {

constexpr std::int64_t kTileKeys = 256;
constexpr std::int64_t kTileRows = 8;
constexpr std::int64_t kMostTileRows = 64;
// Least keys of a part: a smaller one is not worth a second selection.
constexpr std::int64_t kLeastPart = 4096;
constexpr std::int64_t kMostSplits = 4096;

std::int64_t longest_of(std::span<const std::int32_t> lens) {
  return lens.empty() ? 0 : *std::max_element(lens.begin(), lens.end());
}

// Entries of memory for a running selection of k. With twice k its sorting cost is linear.
std::int64_t selection_room(std::int64_t k, std::int64_t longest) {
  return std::min(longest, 2 * k + 64);
}

Result<void> check_output(std::int64_t rows, std::int64_t k, std::span<std::int32_t> out,
                          std::span<std::int32_t> lengths) {
  if (k < 0 || k > kMaxSlots) {
    return Error{ErrorCode::invalid_argument, "k", "0 or more", fmt::format("{}", k), ""};
  }
  if (std::ssize(out) != rows * k) {
    return Error{ErrorCode::invalid_argument, "out", fmt::format("{} rows of {}", rows, k),
                 fmt::format("{}", out.size()), ""};
  }
  if (!lengths.empty() && std::ssize(lengths) != rows) {
    return Error{ErrorCode::invalid_argument, "lengths", fmt::format("{}, or none", rows),
                 fmt::format("{}", lengths.size()), ""};
  }
  return {};
}

// Writes selections to the caller's arrays.
class Output {
 public:
  Output(const IndexTarget& target, std::int64_t k, std::span<std::int32_t> out,
         std::span<std::int32_t> lengths)
      : target_(target), k_(k), out_(out), lengths_(lengths) {}

  void put(std::int64_t t, std::span<const std::uint64_t> ranks) const {
    std::int32_t* row = out_.data() + t * k_;
    for (std::size_t i = 0; i < ranks.size(); ++i) row[i] = rank_position(ranks[i]);
    std::sort(row, row + ranks.size());
    finish(t, std::ssize(ranks));
  }
  void put_all(std::int64_t t, std::int64_t len) const {
    std::int32_t* row = out_.data() + t * k_;
    for (std::int64_t i = 0; i < len; ++i) row[i] = static_cast<std::int32_t>(i);
    finish(t, len);
  }

 private:
  void finish(std::int64_t t, std::int64_t n) const {
    std::int32_t* row = out_.data() + t * k_;
    if (target_.unit != IndexTargetUnit::local) {
      for (std::int64_t i = 0; i < n; ++i) row[i] = in_target(target_, t, LocalPos(row[i]));
    }
    std::fill(row + n, row + k_, -1);
    if (!lengths_.empty()) lengths_[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(n);
  }

  const IndexTarget& target_;
  std::int64_t k_;
  std::span<std::int32_t> out_;
  std::span<std::int32_t> lengths_;
};

// How the work is cut. Scratch is one piece per thread and, if rows are split, the best k of each
// part of each row.
struct TopKTiling {
  std::int64_t rows, k, longest, threads;
  std::int64_t tile_keys, tile_rows, splits, room;

  TopKTiling(const IndexTopK& args)
      : rows(std::ssize(args.rows.lens)),
        k(args.k),
        longest(longest_of(args.rows.lens)),
        threads(thread_count(args.execution)) {
    const IndexTiling& t = args.tiling;
    tile_keys = std::min(longest, t.tile_keys > 0 ? t.tile_keys : kTileKeys);
    tile_rows = t.tile_rows > 0 ? std::min(t.tile_rows, kMostTileRows)
                                : std::clamp<std::int64_t>(rows / (4 * threads), 1, kTileRows);
    // With few rows, several threads share a row. Two parts per thread balance the load.
    splits = threads == 1 ? 1
                          : std::clamp<std::int64_t>(ceil_div(2 * threads, chunks()), 1,
                                                     ceil_div(longest, kLeastPart));
    if (t.key_splits > 0) splits = std::min({t.key_splits, longest, kMostSplits});
    room = selection_room(k, longest);
  }

  std::int64_t chunks() const { return ceil_div(rows, tile_rows); }
  std::int64_t part() const { return ceil_div(longest, splits); }
  std::int64_t tile_bytes(const IndexQuery& query) const {
    return TileMemory::bytes(query, tile_keys, tile_rows);
  }
  std::int64_t worker_bytes(const IndexQuery& query) const {
    return whole_lines(tile_bytes(query) + tile_rows * room * 8);
  }
  std::int64_t bytes(const IndexQuery& query) const {
    return threads * worker_bytes(query) + (splits > 1 ? rows * splits * (k + 1) * 8 : 0);
  }
  // Shrinks buffers until the budget fits, those first that cost the least time.
  Result<void> fit(const IndexQuery& query, std::int64_t budget) {
    while (bytes(query) > budget) {
      if (splits > 1) {
        splits /= 2;
      } else if (tile_rows > 1) {
        tile_rows = ceil_div(tile_rows, 2);
      } else if (tile_keys > 16) {
        tile_keys = ceil_div(tile_keys, 2);
      } else if (room > k + 1) {
        room = k + 1 + (room - k - 1) / 2;
      } else {
        return Error{ErrorCode::exhausted, "budget_bytes", fmt::format("at least {}", bytes(query)),
                     fmt::format("{}", budget), "or fewer threads"};
      }
    }
    return {};
  }
};

class TopK {
 public:
  TopK(const IndexTopK& args, const TopKTiling& cut, std::byte* memory)
      : a_(args),
        cut_(cut),
        output_(args.target, args.k, args.out, args.lengths),
        memory_(memory),
        parts_(reinterpret_cast<std::uint64_t*>(memory +
                                                cut.threads * cut.worker_bytes(args.query))) {}

  void run() const {
    run_tasks(a_.execution, cut_.chunks() * cut_.splits,
              [&](std::int64_t task, int worker) { select(task, worker); });
    if (cut_.splits == 1) return;
    run_tasks(a_.execution, cut_.rows, [&](std::int64_t t, int worker) { merge(t, worker); });
  }

 private:
  bool wants(std::int64_t t) const { return a_.rows.lens[static_cast<std::size_t>(t)] > a_.k; }
  std::span<std::uint64_t> room(int worker, std::int64_t slot) const {
    std::byte* rooms = memory_ + worker * cut_.worker_bytes(a_.query) + cut_.tile_bytes(a_.query);
    return {reinterpret_cast<std::uint64_t*>(rooms) + slot * cut_.room,
            static_cast<std::size_t>(cut_.room)};
  }
  // Memory for the best of one part of a row: their number, then their ranks.
  std::uint64_t* part(std::int64_t t, std::int64_t split) const {
    return parts_ + (t * cut_.splits + split) * (cut_.k + 1);
  }

  void select(std::int64_t task, int worker) const {
    const std::int64_t begin = task / cut_.splits * cut_.tile_rows;
    const std::int64_t end = std::min(cut_.rows, begin + cut_.tile_rows);
    const std::int64_t split = task % cut_.splits;
    const std::int64_t key_begin = std::min(cut_.longest, split * cut_.part());
    const std::int64_t key_end = std::min(cut_.longest, key_begin + cut_.part());
    std::array<RunningTopK, kMostTileRows> best;
    for (std::int64_t t = begin; t < end; ++t) {
      best[static_cast<std::size_t>(t - begin)] = RunningTopK(room(worker, t - begin), cut_.k);
    }
    const TileMemory tile(a_.query, cut_.tile_keys, cut_.tile_rows,
                          memory_ + worker * cut_.worker_bytes(a_.query));
    walk_index_rows(
        a_.query, a_.keys, a_.rows, begin, end, key_begin, key_end, cut_.tile_keys, tile,
        [&](std::int64_t t) { return wants(t); },
        [&](std::int64_t t, std::int64_t first, std::span<const float> logits) {
          best[static_cast<std::size_t>(t - begin)].add(logits, static_cast<std::int32_t>(first));
        });
    for (std::int64_t t = begin; t < end; ++t) {
      if (!wants(t)) {
        if (split == 0) output_.put_all(t, a_.rows.lens[static_cast<std::size_t>(t)]);
        continue;
      }
      const auto ranks = best[static_cast<std::size_t>(t - begin)].best();
      if (cut_.splits == 1) {
        output_.put(t, ranks);
        continue;
      }
      part(t, split)[0] = ranks.size();
      std::copy(ranks.begin(), ranks.end(), part(t, split) + 1);
    }
  }

  void merge(std::int64_t t, int worker) const {
    if (!wants(t)) return;
    RunningTopK best(room(worker, 0), cut_.k);
    for (std::int64_t s = 0; s < cut_.splits; ++s) {
      const std::uint64_t* ranks = part(t, s);
      for (std::uint64_t i = 1; i <= ranks[0]; ++i) best.add(ranks[i]);
    }
    output_.put(t, best.best());
  }

  const IndexTopK& a_;
  const TopKTiling& cut_;
  Output output_;
  std::byte* memory_;
  std::uint64_t* parts_;  // [rows, splits, k + 1]
};

}  // namespace

Result<void> index_top_k(const IndexTopK& args) {
  if (auto ok = check_index_args(args.query, args.keys, args.rows); !ok) return ok;
  const std::int64_t rows = std::ssize(args.rows.lens);
  if (auto ok = check_index_target(args.target, rows); !ok) return ok;
  if (auto ok = check_output(rows, args.k, args.out, args.lengths); !ok) return ok;
  if (args.k == 0 || longest_of(args.rows.lens) <= args.k) {
    // Every row has at most k keys: no logits or scratch are needed.
    const Output output(args.target, args.k, args.out, args.lengths);
    run_tasks(args.execution, rows, [&](std::int64_t t, int) {
      const std::int64_t len = args.rows.lens[static_cast<std::size_t>(t)];
      output.put_all(t, std::min(args.k, len));
    });
    return {};
  }
  TopKTiling cut(args);
  if (auto ok = cut.fit(args.query, args.tiling.budget_bytes); !ok) return ok;
  Scratch own;
  Scratch& scratch = args.execution.scratch != nullptr ? *args.execution.scratch : own;
  TopK(args, cut, scratch.take(cut.bytes(args.query))).run();
  return {};
}

Result<void> index_select(const RowsView& logits, std::span<const std::int32_t> lens,
                          const IndexTarget& target, std::int64_t k, std::span<std::int32_t> out,
                          std::span<std::int32_t> lengths, const Execution& execution) {
  const std::int64_t rows = std::ssize(lens);
  if (logits.dtype != DType::f32 || logits.rows != rows || logits.row_stride < logits.cols ||
      (logits.data == nullptr && rows > 0 && logits.cols > 0)) {
    return Error{
        ErrorCode::invalid_argument, "logits", fmt::format("{} rows of f32", rows),
        fmt::format("{} [{}, {}], stride {}{}", name(logits.dtype), logits.rows, logits.cols,
                    logits.row_stride, logits.data == nullptr ? ", a null pointer" : ""),
        ""};
  }
  for (std::size_t t = 0; t < lens.size(); ++t) {
    if (lens[t] >= 0 && lens[t] <= logits.cols) continue;
    return Error{ErrorCode::invalid_argument, fmt::format("lens[{}]", t),
                 fmt::format("0 to {}", logits.cols), fmt::format("{}", lens[t]), ""};
  }
  if (auto ok = check_index_target(target, rows); !ok) return ok;
  if (auto ok = check_output(rows, k, out, lengths); !ok) return ok;
  const Output output(target, k, out, lengths);
  const std::int64_t room = std::max<std::int64_t>(0, selection_room(k, longest_of(lens)));
  Scratch own;
  Scratch& scratch = execution.scratch != nullptr ? *execution.scratch : own;
  auto* rooms = reinterpret_cast<std::uint64_t*>(scratch.take(8 * room * thread_count(execution)));
  run_tasks(execution, rows, [&](std::int64_t t, int worker) {
    const std::int64_t len = lens[static_cast<std::size_t>(t)];
    if (k == 0 || len <= k) return output.put_all(t, std::min(k, len));
    RunningTopK best({rooms + worker * room, static_cast<std::size_t>(room)}, k);
    best.add({reinterpret_cast<const float*>(logits.row(t)), static_cast<std::size_t>(len)}, 0);
    output.put(t, best.best());
  });
  return {};
}

}  // namespace lathe
