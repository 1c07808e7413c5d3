// index_logits(): rows and keys are cut into tiles over the threads.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/indexer/indexer.h"
#include "kernels/cpu/indexer/indexer_walk.h"

namespace lathe {
namespace {

// Keys of a tile: decoded, they fit the second-level cache together with a few rows.
constexpr std::int64_t kLogitTileKeys = 256;
constexpr std::int64_t kTileRows = 8;
// Least keys of a task.
constexpr std::int64_t kLeastLogitPart = 2048;

Result<void> check_view(const MutableRowsView& view, const IndexRows& rows) {
  const std::int64_t longest =
      rows.lens.empty() ? 0 : *std::max_element(rows.lens.begin(), rows.lens.end());
  if (view.dtype == DType::f32 && view.rows == std::ssize(rows.lens) && view.cols >= longest &&
      view.row_stride >= view.cols && (view.data != nullptr || view.rows == 0 || view.cols == 0)) {
    return {};
  }
  return Error{ErrorCode::invalid_argument, "logits",
               fmt::format("f32 [{}, {} or more]", rows.lens.size(), longest),
               fmt::format("{} [{}, {}], stride {}{}", name(view.dtype), view.rows, view.cols,
                           view.row_stride, view.data == nullptr ? ", a null pointer" : ""),
               ""};
}

}  // namespace

Result<void> index_logits(const IndexLogits& args) {
  if (auto ok = check_index_args(args.query, args.keys, args.rows); !ok) return ok;
  if (auto ok = check_view(args.logits, args.rows); !ok) return ok;
  const std::int64_t count = std::ssize(args.rows.lens);
  const std::int64_t cols = args.logits.cols;
  if (count == 0 || cols == 0) return {};

  const std::int64_t threads = thread_count(args.execution);
  const IndexTiling& tiling = args.tiling;
  std::int64_t tile_keys = std::min(cols, tiling.tile_keys > 0 ? tiling.tile_keys : kLogitTileKeys);
  std::int64_t tile_rows = tiling.tile_rows > 0
                               ? tiling.tile_rows
                               : std::clamp<std::int64_t>(count / (4 * threads), 1, kTileRows);
  const auto total = [&] { return threads * TileMemory::bytes(args.query, tile_keys, tile_rows); };
  while (total() > tiling.budget_bytes) {
    if (tile_rows == 1 && tile_keys <= 16) {
      return Error{ErrorCode::exhausted, "budget_bytes", fmt::format("at least {}", total()),
                   fmt::format("{}", tiling.budget_bytes), "or fewer threads"};
    }
    (tile_rows > 1 ? tile_rows : tile_keys) = ceil_div(tile_rows > 1 ? tile_rows : tile_keys, 2);
  }
  const std::int64_t chunks = ceil_div(count, tile_rows);
  const std::int64_t parts =
      std::clamp<std::int64_t>(ceil_div(2 * threads, chunks), 1, ceil_div(cols, kLeastLogitPart));
  const std::int64_t part = ceil_div(cols, parts);

  Scratch own;
  Scratch& scratch = args.execution.scratch != nullptr ? *args.execution.scratch : own;
  const std::int64_t each = TileMemory::bytes(args.query, tile_keys, tile_rows);
  std::byte* memory = scratch.take(threads * each);
  run_tasks(args.execution, chunks * parts, [&](std::int64_t task, int worker) {
    const std::int64_t begin = task / parts * tile_rows;
    const std::int64_t end = std::min(count, begin + tile_rows);
    const std::int64_t first_key = std::min(cols, task % parts * part);
    const std::int64_t end_key = std::min(cols, first_key + part);
    const TileMemory tile(args.query, tile_keys, tile_rows, memory + each * worker);
    walk_index_rows(
        args.query, args.keys, args.rows, begin, end, first_key, end_key, tile_keys, tile,
        [](std::int64_t) { return true; },
        [&](std::int64_t t, std::int64_t first, std::span<const float> logits) {
          std::memcpy(args.logits.row(t) + 4 * first, logits.data(), logits.size_bytes());
        });
    for (std::int64_t t = begin; t < end; ++t) {
      auto* row = reinterpret_cast<float*>(args.logits.row(t));
      const std::int64_t len = args.rows.lens[static_cast<std::size_t>(t)];
      std::fill(row + std::clamp(len, first_key, end_key), row + end_key,
                -std::numeric_limits<float>::infinity());
    }
  });
  return {};
}

}  // namespace lathe
