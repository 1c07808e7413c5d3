// Parameters of the codec kernels: plain values, computed on the host by codec_launch.cc.
//
// A row is split into chunks of 8 elements. A thread processes a few chunks of one row; a warp
// processes a batch of chunks from one run of a few rows (batch.cuh).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/fast_div.h"

namespace lathe::cuda {

inline constexpr int kCodecWarps = 8;  // at most, per block
inline constexpr int kCodecThreads = 32 * kCodecWarps;
inline constexpr int kChunk = 8;          // elements
inline constexpr int kMaxBlockRows = 64;  // rows of a block

// Loads that a thread of move_kernel issues before it uses the first result.
LATHE_HD constexpr int move_rounds(std::size_t access) { return access == 16 ? 4 : 8; }

inline constexpr std::int64_t kMaxRowBytes = 0x7fffffff;  // largest row stride
inline constexpr std::int32_t kWideTile = -1;
inline constexpr std::int32_t kFp4TileShift = 1;  // tiles of 16 elements, 2 chunks

/// How a run of elements is stored.
enum class RunKind : std::uint8_t {
  bf16,         // not converted
  e4m3_tensor,  // one scale for the pool
  e4m3_f32,     // an f32 scale per tile
  e4m3_ue8m0,   // an exponent byte per tile
  e2m1_ue8m0,
  f32,  // only for rows outside the cache
};

template <RunKind kKind>
inline constexpr bool kTiled =
    kKind == RunKind::e4m3_f32 || kKind == RunKind::e4m3_ue8m0 || kKind == RunKind::e2m1_ue8m0;

/// L2 cache hints (cache_hints.cuh).
struct Hints {
  bool keeps_scales = false;  // scales that a layout stores in a separate plane
  bool drops_values = false;  // codes and rows
};
/// Hints for a kernel with these runs: the fastest as measured with scattered slots.
LATHE_HD constexpr Hints encode_hints(RunKind first, RunKind second) {
  if (first == RunKind::e4m3_f32 && second == first) return {true, true};
  return {first == RunKind::e4m3_ue8m0 || first == RunKind::e2m1_ue8m0, false};
}
/// As encode_hints(), for ordered tokens.
LATHE_HD constexpr Hints ordered_hints(RunKind first, RunKind second) {
  return {first == RunKind::e4m3_ue8m0 || (first == RunKind::e4m3_f32 && second == first), false};
}
LATHE_HD constexpr Hints decode_hints(RunKind first, RunKind second) {
  if (first == RunKind::e2m1_ue8m0) return {true, true};
  return {first == RunKind::e4m3_ue8m0 || (first == RunKind::e4m3_f32 && second == first), false};
}

template <RunKind kKind>
using Constant = std::integral_constant<RunKind, kKind>;

/// Chunks that a thread loads before it uses the first: `many`, or `few` if the run is too short.
struct Rounds {
  int many;
  int few;
};
/// `aligned`: false where accesses may be single bytes; a chunk is then many instructions, so one
/// at a time is enough. 7 is the number of v4_fp8's tiles (RunParams::scale_word).
LATHE_HD constexpr Rounds encode_rounds(bool aligned, bool rotates, RunKind kind) {
  if (!aligned) return {1, 1};
  // Half of an index key rotates: with two rounds, one rotates and the other does not.
  if (rotates && kind == RunKind::e4m3_f32) return {2, 1};
  if (rotates) return {1, 1};
  return {kind == RunKind::e4m3_ue8m0 ? 7 : 4, 2};
}
LATHE_HD constexpr Rounds decode_rounds(bool aligned, RunKind kind) {
  if (!aligned) return {1, 1};
  return {kind == RunKind::e4m3_ue8m0 ? 7 : 4, 2};
}
LATHE_HD constexpr Rounds requant_rounds(bool aligned) {
  return aligned ? Rounds{4, 2} : Rounds{1, 1};
}

/// Whether a lane with `rounds` chunks has one chunk of every tile, in rows with a scale word.
template <RunKind kKind, int kRounds>
inline constexpr bool kScaleWord = kKind == RunKind::e4m3_ue8m0&& kRounds == 7;

/// Whether lanes combine scales into words (scale_words.cuh). Launches use it only with whole
/// batches.
template <RunKind kKind, int kRounds>
inline constexpr bool kScalesJoined = kKind == RunKind::e2m1_ue8m0 &&
                                      (kRounds == 4 || kRounds == 2);
constexpr bool scales_join(int rounds, int shift) {
  return rounds == 4 ? shift >= 3 : rounds == 2 && shift == 2;
}

/// Rows that eight lanes of write_index_keys_kernel process in sequence, so that the next row's
/// loads are in flight: as many as registers allow.
LATHE_HD constexpr int key_steps(bool interleaved) { return interleaved ? 2 : 1; }

/// How a run's chunks are assigned to warps: 2^shift neighbouring lanes share a row, and each has
/// `rounds` chunks that are 2^shift apart, so a lane handles one row only. A warp's batch is 2^(5 -
/// shift) rows, or one of `pieces` parts of them.
struct LaneMap {
  std::uint32_t chunks = 1;  // chunks of the run per row
  std::int32_t shift = 5;
  std::int32_t rounds = 1;
  FastDiv pieces;
  std::int32_t batches = 0;  // batches of all rows of a block
};

struct RunParams {
  RunKind kind = RunKind::bf16;
  bool raw_scale = false;     // e4m3_f32: amax / 448, not rounded up to a power of two
  bool vector = false;        // a chunk's codes can be accessed at once
  bool vector_scale = false;  // f32 scales can be accessed at once
  // e4m3_ue8m0 with 7 tiles: the row's scales and pad are one 8-byte word, accessed at once.
  bool scale_word = false;
  Hints hints;
  // 2^tile_shift threads share a tile, at most a warp. kWideTile: the tile has another number of
  // chunks; then the run is one tile, and a warp processes a row.
  std::int32_t tile_shift = 0;
  std::uint32_t first_chunk = 0;  // chunk of the row where the run starts
  std::uint32_t first_tile = 0;   // index of the run's first scale
  std::int64_t start = 0;         // bytes from the start of a page; token i at start + i * step
  std::uint32_t step = 0;         // unsigned, so that a 64-bit product is one instruction
  std::uint32_t scale_step = 0;
  std::int64_t scale_start = 0;
  float scale = 1;       // e4m3_tensor
  float inverse = 1;     // 1 / scale
  bool rotates = false;  // some of its chunks
  LaneMap lanes;
};

/// `run` with the values that a kernel knows at compile time.
template <RunKind kKind, bool kWhole>
LATHE_HD constexpr RunParams known_run(RunParams run, Hints hints = {}) {
  run.hints = hints;
  run.kind = kKind;
  run.vector = kWhole || run.vector;
  run.vector_scale = kWhole || run.vector_scale;
  return run;
}

constexpr bool runs_aligned(const RunParams (&runs)[2], std::int32_t count) {
  for (std::int32_t i = 0; i < count; ++i) {
    if (!runs[i].vector || !runs[i].vector_scale) return false;
  }
  return true;
}

/// Whether a launch stages records (stage.cuh): for mla_fp8_block and v4_fp8, if all accesses are
/// whole.
LATHE_HD constexpr bool staged(RunKind first, RunKind second, bool whole) {
  return whole && (first == RunKind::e4m3_f32 || first == RunKind::e4m3_ue8m0) &&
         second == RunKind::bf16;
}
inline constexpr std::uint32_t kMostStageBytes = 48 * 1024;  // a block's default limit
/// Shared memory of a stage: every record's destination, then the records, each at a multiple of
/// 16.
LATHE_HD constexpr std::uint32_t stage_head(std::int32_t block_rows) {
  return (static_cast<std::uint32_t>(block_rows) * 8 + 15) / 16 * 16;
}
constexpr std::uint32_t stage_bytes(std::int32_t block_rows, std::uint32_t record) {
  return stage_head(block_rows) + static_cast<std::uint32_t>(block_rows) * record;
}

/// Calls visit(first, second) with the kinds of a launch's runs as constants. A second run is bf16
/// after tiles of e4m3, and otherwise like the first.
template <class Visit>
auto visit_kinds(const RunParams (&runs)[2], Visit visit) {
  using enum RunKind;
  switch (runs[0].kind) {
    case bf16:
      return visit(Constant<bf16>(), Constant<bf16>());
    case e4m3_tensor:
      return visit(Constant<e4m3_tensor>(), Constant<e4m3_tensor>());
    case e4m3_f32:
      return visit(Constant<e4m3_f32>(), Constant<bf16>());
    case e4m3_ue8m0:
      return visit(Constant<e4m3_ue8m0>(), Constant<bf16>());
    case e2m1_ue8m0:
      return visit(Constant<e2m1_ue8m0>(), Constant<e2m1_ue8m0>());
    case f32:
      break;
  }
  return visit(Constant<f32>(), Constant<f32>());
}

/// Rows outside the cache.
struct RowsParams {
  std::byte* data = nullptr;  // [rows, cols] bf16, f32 or e4m3
  std::uint32_t stride = 0;   // bytes; at most kMaxRowBytes
  bool vector = false;        // every row starts at a multiple of 16 bytes
};

/// The pages of a pool.
struct PagesParams {
  std::byte* data = nullptr;
  std::int64_t stride = 0;  // bytes from page to page
  std::uint32_t slots = 0;  // a slot outside [0, slots) is a hole
  FastDiv page_size;
};

/// Rotation of the rotary part of a row or head, chunks [first, first + 2 * half).
struct RopeParams {
  const float* table = nullptr;  // [positions, dim]: dim / 2 cosines, then dim / 2 sines
  // [rows]; null: position 0. A position outside [0, table_positions) is a hole.
  const std::int32_t* positions = nullptr;
  std::int64_t table_positions = 0;
  std::int32_t first = 0;    // chunk
  std::int32_t half = 0;     // dim / 2 in chunks; 0: nothing rotates
  bool interleaved = false;  // false: the two halves form the pairs
  bool inverse = false;
  bool vector = false;  // the table starts at a multiple of 16 bytes
};

/// A token and its destination slot.
struct alignas(8) OrderEntry {
  std::uint32_t token = 0;
  std::int32_t slot = 0;
};

/// Tokens are ordered by which of kOrderParts equal parts of a pool their slot is in (order.cuh).
inline constexpr int kOrderParts = 256;
inline constexpr int kOrderThreads = 256, kOrderEach = 16;  // tokens of a thread
inline constexpr int kOrderRows = kOrderThreads * kOrderEach;
constexpr std::int64_t order_blocks(std::int64_t count) {
  return (count + kOrderRows - 1) / kOrderRows;
}

struct OrderParams {
  const std::int32_t* slots = nullptr;  // [count]
  std::int64_t count = 0;
  std::int32_t shift = 0;           // a slot's part is slot >> shift
  std::uint32_t* totals = nullptr;  // [kOrderParts]
  // [order_blocks(count), kOrderParts]: where a block's tokens start among a part's tokens.
  std::uint32_t* places = nullptr;
  OrderEntry* order = nullptr;  // [count]
};

/// Rows to a pool; or heads of rows to rows: then every head is a row, and the destination rows are
/// treated as the pages of a pool, with heads as their tokens.
struct EncodeParams {
  RowsParams rows;
  std::uint32_t head_bytes = 0;  // of the source, from head to head
  FastDiv heads;
  const std::int32_t* slots = nullptr;  // [count / heads]; null: no row is a hole
  std::uint32_t slot_count = 0;         // a slot outside [0, slot_count) is a hole
  const OrderEntry* order = nullptr;    // [count] order of processing; null: sequential
  std::int64_t count = 0;               // rows times heads
  bool to_rows = false;
  bool zero_holes = false;  // false: nothing is written for a hole
  std::int32_t block_rows = 1;
  std::int32_t threads = 32;
  std::int32_t run_count = 0;
  RunParams runs[2];
  std::int64_t pad_start = 0;
  std::uint32_t pad_step = 0;
  std::int32_t pad_bytes = 0;
  PagesParams pages;
  RopeParams rope;
  // [3], added to, or null. For e4m3_tensor runs: values stored, saturated, and flushed to zero.
  unsigned long long* counts = nullptr;
  bool whole = false;       // every access and batch is whole; set by set_blocks()
  bool index_keys = false;  // write_index_keys_kernel applies, if rows are bf16

  bool aligned() const {
    return rows.vector && runs_aligned(runs, run_count) && (rope.half == 0 || rope.vector);
  }
};

struct DecodeParams {
  RowsParams out;
  const std::int32_t* slots = nullptr;  // [count]; null: row i is slot first + i
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int32_t block_rows = 1;
  std::int32_t threads = 32;
  std::int32_t run_count = 0;
  RunParams runs[2];
  PagesParams pages;
  bool whole = false;

  bool aligned() const { return out.vector && runs_aligned(runs, run_count); }
};

inline constexpr int kMostTileRows = 8;  // rows per block of requantize_tiles_kernel; measured

/// mla_fp8 to mla_fp8_block, or back. Runs of both sides cover the same elements.
struct RequantParams {
  const std::int32_t* src_slots = nullptr;  // [count]
  const std::int32_t* dst_slots = nullptr;  // [count]
  std::int64_t count = 0;
  std::int32_t block_rows = 1;
  std::int32_t threads = 32;
  std::int32_t run_count = 0;
  RunParams src_runs[2];
  RunParams dst_runs[2];
  PagesParams src;
  PagesParams dst;
  // Null, or two words that start at 0: the worst error's bits followed by the complement of its
  // row, and the number of saturated elements.
  unsigned long long* report = nullptr;
  bool whole = false;
  bool together = false;   // requantize_rows() applies
  bool tiles = false;      // requantize_tiles_kernel applies
  std::uint32_t zero = 0;  // opaque to the compiler

  bool aligned() const {
    return runs_aligned(src_runs, run_count) && runs_aligned(dst_runs, run_count);
  }
};

/// Whether a launch stages its records, given that every access of `runs` (the destination's) is
/// whole. v4_fp8 without a rotary part has one run and is staged; index keys have one run and are
/// not.
constexpr bool stages(const RunParams (&runs)[2], std::int32_t run_count) {
  return (run_count == 2 || runs[0].kind == RunKind::e4m3_ue8m0) &&
         staged(runs[0].kind, RunKind::bf16, true);
}
/// Shared memory of a launch's stage.
template <class Params>
constexpr std::uint32_t stage_bytes_of(const Params& p, const RunParams (&runs)[2]) {
  return p.whole && stages(runs, p.run_count) ? stage_bytes(p.block_rows, runs[0].step) : 0;
}

/// How a plane's accesses are split into batches of warps. Records have any number of accesses, so
/// a lane's accesses are consecutive ones, of several records.
struct MoveLaneMap {
  FastDiv accesses;          // per record
  std::uint32_t batch = 0;   // accesses
  std::int32_t batches = 0;  // batches of all rows of a block
};

/// A plane of records: token i of a page is at src_start or dst_start + i * step.
struct MovePlane {
  std::int64_t src_start = 0;
  std::int64_t dst_start = 0;
  std::uint32_t step = 0;   // bytes of a record
  std::int32_t access = 0;  // bytes of an access: 16, 8, 4 or 1
  // Where a dense side's records of this plane start; record i is at dense + i * step.
  std::int64_t dense = 0;
  MoveLaneMap lanes;
};

/// Copies records from slots to slots; skips a pair if either slot is outside its [0, slots).
struct MoveParams {
  PagesParams src;
  PagesParams dst;                 // the same pool or another one
  std::byte* dense_src = nullptr;  // null: the pages
  std::byte* dense_dst = nullptr;
  const std::int32_t* src_slots = nullptr;  // [count]
  const std::int32_t* dst_slots = nullptr;  // [count]
  std::int64_t count = 0;
  std::int32_t block_rows = 1;
  std::int32_t threads = 32;
  std::int32_t run_count = 0;
  MovePlane planes[2];
};

}  // namespace lathe::cuda
