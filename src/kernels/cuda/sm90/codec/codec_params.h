// The parameters of the codec kernels: plain values, computed on the host by codec_launch.cc.
//
// A row is cut into chunks of 8 elements, a thread takes a few chunks of one row, a warp a batch of
// them that belong to one run of a few rows (batch.cuh).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/fast_div.h"

namespace lathe::cuda {

inline constexpr int kCodecWarps = 8;  // of a block, at most
inline constexpr int kCodecThreads = 32 * kCodecWarps;
inline constexpr int kChunk = 8;          // elements
inline constexpr int kMaxBlockRows = 64;  // rows of a block

// Accesses that a thread of move_kernel has in flight before it uses the first.
LATHE_HD constexpr int move_rounds(std::size_t access) { return access == 16 ? 4 : 8; }

inline constexpr std::int64_t kMaxRowBytes = 0x7fffffff;  // from row to row
inline constexpr std::int32_t kWideTile = -1;
inline constexpr std::int32_t kFp4TileShift = 1;  // tiles of 16 elements

/// How a run of elements is stored.
enum class RunKind : std::uint8_t {
  bf16,         // as it is
  e4m3_tensor,  // one scale for the pool
  e4m3_f32,     // an f32 scale per tile
  e4m3_ue8m0,   // an exponent byte per tile
  e2m1_ue8m0,
  f32,  // rows of f32 only
};

template <RunKind kKind>
inline constexpr bool kTiled =
    kKind == RunKind::e4m3_f32 || kKind == RunKind::e4m3_ue8m0 || kKind == RunKind::e2m1_ue8m0;

/// Hints to the L2 cache (cache_hints.cuh).
struct Hints {
  bool keeps_scales = false;  // those of slots, which lie in a plane of their own
  bool drops_values = false;  // codes and rows
};
/// Of a kernel whose runs are of these kinds; those that were fastest for scattered slots.
LATHE_HD constexpr Hints encode_hints(RunKind first, RunKind second) {
  if (first == RunKind::e4m3_f32 && second == first) return {true, true};
  return {first == RunKind::e4m3_ue8m0 || first == RunKind::e2m1_ue8m0, false};
}
/// The same where tokens are ordered.
LATHE_HD constexpr Hints ordered_hints(RunKind first, RunKind second) {
  return {first == RunKind::e4m3_ue8m0 || (first == RunKind::e4m3_f32 && second == first), false};
}
LATHE_HD constexpr Hints decode_hints(RunKind first, RunKind second) {
  if (first == RunKind::e2m1_ue8m0) return {true, true};
  return {first == RunKind::e4m3_ue8m0 || (first == RunKind::e4m3_f32 && second == first), false};
}

template <RunKind kKind>
using Constant = std::integral_constant<RunKind, kKind>;

/// Chunks that a thread loads before it uses the first: `many`, or `few` of a run that has too few.
struct Rounds {
  int many;
  int few;
};
/// `aligned`: false where accesses may be single bytes; a chunk is many instructions then, so one
/// will do. 7 are the tiles of v4_fp8 (RunParams::scale_word).
LATHE_HD constexpr Rounds encode_rounds(bool aligned, bool rotates, RunKind kind) {
  if (!aligned) return {1, 1};
  // Half of an index key rotates: then one round does and the other does not.
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

/// Whether a lane that holds `rounds` chunks holds one of every tile of a row whose scales are a
/// word.
template <RunKind kKind, int kRounds>
inline constexpr bool kScaleWord = kKind == RunKind::e4m3_ue8m0&& kRounds == 7;

/// Whether lanes put scales together (scale_words.cuh): a launch's runs are so cut where its
/// batches are whole.
template <RunKind kKind, int kRounds>
inline constexpr bool kScalesJoined = kKind == RunKind::e2m1_ue8m0 &&
                                      (kRounds == 4 || kRounds == 2);
constexpr bool scales_join(int rounds, int shift) {
  return rounds == 4 ? shift >= 3 : rounds == 2 && shift == 2;
}

/// Rows that eight lanes of write_index_keys_kernel take in sequence, so that the next row's loads
/// are in flight: as many as registers allow.
LATHE_HD constexpr int key_steps(bool interleaved) { return interleaved ? 2 : 1; }

/// How the chunks of a run are dealt to warps: 2^shift neighbouring lanes hold a row, each of them
/// `rounds` chunks that are 2^shift apart, so that a lane knows one row only. A warp's batch is
/// 2^(5 - shift) rows, or one of `pieces` parts of them.
struct Cut {
  std::uint32_t chunks = 1;  // of the run in a row
  std::int32_t shift = 5;
  std::int32_t rounds = 1;
  FastDiv pieces;
  std::int32_t batches = 0;  // of all rows of a block
};

struct RunParams {
  RunKind kind = RunKind::bf16;
  bool raw_scale = false;     // e4m3_f32: amax / 448, not rounded up to a power of two
  bool vector = false;        // codes can be accessed as a whole chunk
  bool vector_scale = false;  // f32 scales can be accessed as a whole
  // e4m3_ue8m0: the row's scales and pad are one word of 8 bytes, accessed as a whole: 7 tiles.
  bool scale_word = false;
  Hints hints;
  // Threads that share a tile are 2^tile_shift, up to a warp; kWideTile: a tile is another number
  // of chunks, a run is one tile, and a warp takes a row.
  std::int32_t tile_shift = 0;
  std::uint32_t first_chunk = 0;  // of the row
  std::uint32_t first_tile = 0;   // the run's first scale
  std::int64_t start = 0;         // bytes from the start of a page; token i at start + i * step
  std::uint32_t step = 0;         // without a sign, so that a product to 64 bits is one instruction
  std::uint32_t scale_step = 0;
  std::int64_t scale_start = 0;
  float scale = 1;       // e4m3_tensor
  float inverse = 1;     // of it
  bool rotates = false;  // some of its chunks
  Cut cut;
};

/// The same with what a kernel knows at compile time.
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

/// Whether a launch's records are staged (stage.cuh): those of mla_fp8_block and v4_fp8, where
/// whole runs are accessed.
LATHE_HD constexpr bool staged(RunKind first, RunKind second, bool whole) {
  return whole && (first == RunKind::e4m3_f32 || first == RunKind::e4m3_ue8m0) &&
         second == RunKind::bf16;
}
inline constexpr std::uint32_t kMostStageBytes = 48 * 1024;  // what a block has by default
/// Shared memory of a stage: where each record goes, then the records, which begin at multiples
/// of 16.
LATHE_HD constexpr std::uint32_t stage_head(std::int32_t block_rows) {
  return (static_cast<std::uint32_t>(block_rows) * 8 + 15) / 16 * 16;
}
constexpr std::uint32_t stage_bytes(std::int32_t block_rows, std::uint32_t record) {
  return stage_head(block_rows) + static_cast<std::uint32_t>(block_rows) * record;
}

/// Calls visit(first, second), constants, with the kinds of a launch's runs. A layout's second run,
/// where it has one, is bf16 next to tiles of e4m3, else like the first.
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
  std::uint32_t stride = 0;   // bytes; kMaxRowBytes bounds it
  bool vector = false;        // every row starts at a multiple of 16 bytes
};

/// The pages of a pool.
struct PagesParams {
  std::byte* data = nullptr;
  std::int64_t stride = 0;  // bytes from page to page
  std::uint32_t slots = 0;  // a slot that is not in [0, slots) is a hole
  FastDiv page_size;
};

/// The rotation of a row's or head's rotary part, chunks [first, first + 2 * half).
struct RopeParams {
  const float* table = nullptr;  // [positions, dim]: dim / 2 cosines, then dim / 2 sines
  // [rows], or null: position 0. Outside [0, table_positions): a hole.
  const std::int32_t* positions = nullptr;
  std::int64_t table_positions = 0;
  std::int32_t first = 0;    // chunk
  std::int32_t half = 0;     // dim / 2 in chunks; 0: nothing rotates
  bool interleaved = false;  // else the halves are paired
  bool inverse = false;
  bool vector = false;  // the table starts at a multiple of 16 bytes
};

/// A token and the slot that it goes to.
struct alignas(8) OrderEntry {
  std::uint32_t token = 0;
  std::int32_t slot = 0;
};

/// Tokens are listed by which of kOrderParts equal parts of a pool their slots lie in (order.cuh).
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
  // Where a block's tokens begin among those of a part. [order_blocks(count), kOrderParts]
  std::uint32_t* places = nullptr;
  OrderEntry* order = nullptr;  // [count]
};

/// Rows into a pool, or heads of rows into rows: then every head is a row, and the rows that it
/// goes to are the pages of a pool, with the heads as their tokens.
struct EncodeParams {
  RowsParams rows;
  std::uint32_t head_bytes = 0;  // of the source, from head to head
  FastDiv heads;
  const std::int32_t* slots = nullptr;  // [count / heads], or null: no row is a hole
  std::uint32_t slot_count = 0;         // a slot that is not in [0, slot_count) is a hole
  const OrderEntry* order = nullptr;    // [count] tokens as they are taken; null: in turn
  std::int64_t count = 0;               // rows times heads
  bool to_rows = false;
  bool zero_holes = false;  // else nothing is written for a hole
  std::int32_t block_rows = 1;
  std::int32_t threads = 32;
  std::int32_t run_count = 0;
  RunParams runs[2];
  std::int64_t pad_start = 0;
  std::uint32_t pad_step = 0;
  std::int32_t pad_bytes = 0;
  PagesParams pages;
  RopeParams rope;
  // Of e4m3_tensor runs, added to: values stored, saturated, flushed to zero. [3], or null
  unsigned long long* counts = nullptr;
  bool whole = false;       // every access and every batch; cut() sets it
  bool index_keys = false;  // write_index_keys_kernel takes it, if rows are bf16

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

inline constexpr int kMostTileRows = 8;  // rows of a block of requantize_tiles_kernel; measured

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
  // Null, or two words that start as 0: the bits of the worst error above the complement of its
  // row, and a count of saturated elements.
  unsigned long long* report = nullptr;
  bool whole = false;
  bool together = false;   // requantize_rows() takes it
  bool tiles = false;      // requantize_tiles_kernel takes it
  std::uint32_t zero = 0;  // opaque to the compiler

  bool aligned() const {
    return runs_aligned(src_runs, run_count) && runs_aligned(dst_runs, run_count);
  }
};

/// Whether a launch's records are staged if every access of `runs`, those of what it writes, is
/// whole. Without rotary part v4_fp8 has one run, as index keys have, which are not.
constexpr bool stages(const RunParams (&runs)[2], std::int32_t run_count) {
  return (run_count == 2 || runs[0].kind == RunKind::e4m3_ue8m0) &&
         staged(runs[0].kind, RunKind::bf16, true);
}
/// Shared memory that a launch takes for its stage.
template <class Params>
constexpr std::uint32_t stage_bytes_of(const Params& p, const RunParams (&runs)[2]) {
  return p.whole && stages(runs, p.run_count) ? stage_bytes(p.block_rows, runs[0].step) : 0;
}

/// How the accesses of a plane are cut into the batches of warps: records have any number of them,
/// so a lane takes whatever follows, of several records.
struct MoveCut {
  FastDiv accesses;          // of a record
  std::uint32_t batch = 0;   // accesses
  std::int32_t batches = 0;  // of all rows of a block
};

/// A plane of records: token i of a page at start + i * step.
struct MovePlane {
  std::int64_t start = 0;
  std::uint32_t step = 0;   // bytes of a record
  std::int32_t access = 0;  // bytes of an access: 16, 8, 4 or 1
  // Where a dense side's records of this plane begin; record i lies at i * step.
  std::int64_t dense = 0;
  MoveCut cut;
};

/// Records from slots to slots; a pair is skipped where either is outside [0, slots).
struct MoveParams {
  PagesParams pages;
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
