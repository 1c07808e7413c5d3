// What the codec kernels are launched with: plain values, made on the host by codec_params.cc.
//
// A row is cut into chunks of 8 elements, a thread takes a chunk. A block takes a few rows, so that
// what is needed once per row (slot, page, position) is worked out once and lies in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/fast_div.h"

namespace lathe::cuda {

inline constexpr int kCodecThreads = 256;
inline constexpr int kChunk = 8;          // elements
inline constexpr int kMaxBlockRows = 64;  // rows of a block
inline constexpr int kUnroll = 4;         // chunks that a thread loads before it uses the first

inline constexpr std::int64_t kMaxRowBytes = 0x7fffffff;  // from row to row
inline constexpr std::int32_t kWideTile = -1;

/// How a run of elements is stored.
enum class RunKind : std::uint8_t {
  bf16,         // as it is
  e4m3_tensor,  // one scale for the pool
  e4m3_f32,     // an f32 scale per tile
  e4m3_ue8m0,   // an exponent byte per tile
  e2m1_ue8m0,
};

/// Chunks per thread and round. Without whole accesses a chunk is many instructions, so one will do.
template <bool kAligned>
inline constexpr int kRound = kAligned ? kUnroll : 1;

struct RunParams {
  RunKind kind = RunKind::bf16;
  bool raw_scale = false;     // e4m3_f32: amax / 448, not rounded up to a power of two
  bool vector = false;        // codes can be accessed as a whole chunk
  bool vector_scale = false;  // f32 scales can be accessed as a whole
  // Threads that share a tile are 2^tile_shift, up to a warp; kWideTile: a tile is no such number
  // of chunks, a run is one tile, and a warp takes a row.
  std::int32_t tile_shift = 0;
  std::uint32_t first_chunk = 0;  // of the row
  std::uint32_t first_tile = 0;   // the run's first scale
  std::int64_t start = 0;         // bytes from the start of a page; token i at start + i * step
  std::uint32_t step = 0;         // without a sign, so that a product to 64 bits is one instruction
  std::uint32_t scale_step = 0;
  std::int64_t scale_start = 0;
  float scale = 1;    // e4m3_tensor
  float inverse = 1;  // of it
  FastDiv chunks;     // of the run
};

/// The same where kAligned, with the flags as constants that the compiler sees.
template <bool kAligned>
LATHE_HD constexpr RunParams known_run(RunParams run) {
  run.vector = kAligned || run.vector;
  run.vector_scale = kAligned || run.vector_scale;
  return run;
}

constexpr bool runs_aligned(const RunParams (&runs)[2], std::int32_t count) {
  for (std::int32_t i = 0; i < count; ++i) {
    if (!runs[i].vector || !runs[i].vector_scale) return false;
  }
  return true;
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
  std::int64_t slots = 0;   // a slot that is not in [0, slots) is a hole
  FastDiv page_size;
};

/// The rotation of a row's rotary part. Chunks [first, first + 2 * half) of a head are rotary.
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

struct EncodeParams {
  RowsParams rows;
  const std::int32_t* slots = nullptr;  // [count]
  std::int64_t count = 0;
  std::int32_t block_rows = 1;
  std::int32_t run_count = 0;
  RunParams runs[2];
  std::int64_t pad_start = 0;
  std::uint32_t pad_step = 0;
  std::int32_t pad_bytes = 0;
  PagesParams pages;
  RopeParams rope;

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
  std::int32_t run_count = 0;
  RunParams runs[2];
  PagesParams pages;

  bool aligned() const { return out.vector && runs_aligned(runs, run_count); }
};

/// mla_fp8 to mla_fp8_block, or back. Runs of both sides cover the same elements.
struct RequantParams {
  const std::int32_t* src_slots = nullptr;  // [count]
  const std::int32_t* dst_slots = nullptr;  // [count]
  std::int64_t count = 0;
  std::int32_t block_rows = 1;
  std::int32_t run_count = 0;
  RunParams src_runs[2];
  RunParams dst_runs[2];
  PagesParams src;
  PagesParams dst;
  // Null, or two words that start as 0: the bits of the worst error above the complement of its
  // row, and a count of saturated elements.
  unsigned long long* report = nullptr;

  bool aligned() const {
    return runs_aligned(src_runs, run_count) && runs_aligned(dst_runs, run_count);
  }
};

/// Records of one plane from slots to slots; a pair is skipped where either is outside [0, slots).
/// On a dense side, record i lies at i * step.
struct MoveParams {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  bool src_dense = false;
  bool dst_dense = false;
  const std::int32_t* src_slots = nullptr;  // [count]
  const std::int32_t* dst_slots = nullptr;  // [count]
  std::int64_t slots = 0;
  std::int64_t count = 0;
  std::int64_t page_stride = 0;
  std::int64_t start = 0;
  std::int32_t step = 0;  // bytes of a record
  std::int32_t unit = 0;  // bytes of an access: 16, 4 or 1
  std::int32_t block_rows = 1;
  FastDiv page_size;
  FastDiv units;  // in a record
};

/// Heads of rows from one format to another, their rotary part rotated.
struct RotateParams {
  RowsParams in;
  RowsParams out;
  std::int64_t rows = 0;
  std::int32_t block_rows = 1;
  std::int32_t slice = 0;   // chunks of a row that a block takes
  std::int32_t chunks = 0;  // of a row
  FastDiv slice_chunks;     // = slice
  FastDiv head_chunks;
  const std::int32_t* slots =
      nullptr;  // [rows] or null: a slot outside [0, slots) makes a hole, too
  std::int64_t slot_count = 0;
  bool in_place = false;  // holes stay as they are; else they become zeros
  float inverse_scale = 1;
  RopeParams rope;

  bool aligned() const { return in.vector && out.vector && (rope.half == 0 || rope.vector); }
};

}  // namespace lathe::cuda
