// Exchanges between the GPUs of one host, over peer memory: sums of partials with the norm that
// follows, dealt columns and records. Every rank launches the same exchange with the same shapes on
// its own stream; a kernel waits for its peers' kernels of the same call.
//
// A call's rows are summed in f32, +0 first and then rank after rank, from partials in bf16. So
// its bits depend neither on the number of rows, nor on the algorithm, nor on timing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/float_formats.h"
#include "kernels/cuda/common/device_rows.h"

namespace lathe::cuda {

inline constexpr int kMostRanks = 8;

/// Blocks of an exchange by flags. Each has its own flags, so all must run at once.
inline constexpr int kFlagBlocks = 128;
/// Planes of pushed words, used in turn: a rank fills the one before while a peer, at most a call
/// ahead, writes into the one after.
inline constexpr int kPlanes = 3;

/// What a word of a plane holds until a peer has pushed it: -0 in bf16, twice. Pushed words have no
/// -0; it becomes +0.
inline constexpr std::uint32_t kUnsent = 0x80008000u;

/// 16-byte words of a row.
LATHE_HD constexpr std::int64_t exchange_words(std::int64_t cols) { return cols / 8; }
inline constexpr std::int64_t kExchangeCols = 16384;  // of the widest row

/// Where a rank is in its sequence of calls. In its own device memory, zero at first; only its own
/// kernels access it, so a replayed graph needs no help from the host.
struct alignas(16) ExchangeState {
  std::uint64_t call = 0;     // calls that have ended. 64 bits do not wrap
  std::uint32_t plane = 0;    // of the next push
  std::uint32_t used = 0;     // words of the plane before that hold data, to be filled again
  std::uint32_t left = 0;     // blocks that have left the running call
  std::uint32_t gave_up = 0;  // 1: a call was left early, so no later one runs
};

/// Why a kernel left a call early.
enum class GaveUp : std::uint32_t { no, aborted, too_late };

/// One per rank, in mapped host memory.
struct ExchangeControl {
  std::uint64_t limit_nanoseconds = 0;  // the host sets it: how long a kernel waits for a peer
  std::uint32_t abort = 0;              // the host sets it to 1: kernels stop waiting
  GaveUp gave_up = GaveUp::no;          // a kernel sets these two
  std::uint64_t call = 0;
};

/// A peer's note to a block of this rank: which memory to read, and how far it is.
struct alignas(32) ExchangeFlag {
  std::uint64_t address = 0;  // of what the peer offers
  std::uint64_t other = 0;    // of what the peer wants to have written
  std::uint64_t entered = 0;  // call + 1: the memory may be accessed
  std::uint64_t done = 0;  // call + 1: the peer's block has no more accesses to this rank's memory
};

/// A rank and the memory by which it meets its peers. Arrays are by rank; own entries too.
struct ExchangePeers {
  std::int32_t rank = 0, size = 0;
  std::int64_t plane_words = 0;          // 16-byte words of a plane
  void* planes[kMostRanks] = {};         // [kPlanes, plane_words, 16] on that rank's GPU
  ExchangeFlag* flags[kMostRanks] = {};  // [kFlagBlocks, kMostRanks] by the writing rank
  ExchangeState* state = nullptr;
  ExchangeControl* control = nullptr;  // the device's address of it
};

/// How a sum travels.
enum class SumPath {
  push,        // every rank pushes its rows to all others. Fastest for few rows
  push_owned,  // rank r sums and norms its share of rows, and pushes h
  pull,        // every rank reads the others' rows
  pull_owned,  // as push_owned, but partials are read
};

/// x = (add ? x : 0) + the sum of all ranks' partials; with h also h = RMS norm of x. Where rows
/// are owned, rank r has rows [r c, (r + 1) c) with c = rows / size, rounded up, and x is written
/// there alone. A -0 in h becomes +0.
struct SumParams {
  DeviceRows partial = {};        // [rows, cols] bf16; or f32, which is rounded to bf16 first
  MutableDeviceRows x = {};       // [rows, cols] f32
  const float* weight = nullptr;  // [cols]; null: 1
  MutableDeviceRows h = {};       // [rows, cols] bf16; no data: no norm
  std::int64_t rows = 0, cols = 0;
  float eps = 0;
  bool add = true;
  bool exact = false;  // f32 partials are not rounded; then there is no norm, and rows are read
};

/// Rank r gets rows r, r + size, .. whole, from all ranks' columns.
struct TradeParams {
  const float* columns = nullptr;             // [rows, first[rank + 1] - first[rank]]
  float* whole = nullptr;                     // [rows of this rank, first[size]]
  std::int64_t stride = 0, whole_stride = 0;  // elements. stride may differ by rank
  std::int64_t rows = 0;
  std::int64_t first[kMostRanks + 1] = {};
};

/// Record i comes from rank i % size.
struct ShareParams {
  void* records = nullptr;  // [count, 16], aligned to 16 bytes
  std::int64_t count = 0;
};

/// Words of a plane that a push needs; 0 for a pull.
std::int64_t plane_words_of(SumPath path, int size, std::int64_t rows, std::int64_t cols);

struct ExchangeLaunch {
  int sms = 0;           // of the calling thread's device
  bool one_row = false;  // for benches: at most a row on an SM at once, whatever their number
};

/// Whether the kernels support these rows: widths of whole words up to kExchangeCols, words aligned
/// to 16 bytes, the types above.
bool sum_takes(const SumParams& p);

cudaError_t launch_sum(const ExchangePeers& peers, SumPath path, const SumParams& p,
                       const ExchangeLaunch& launch, cudaStream_t stream);
cudaError_t launch_trade_columns(const ExchangePeers& peers, const TradeParams& p,
                                 cudaStream_t stream);
cudaError_t launch_share_records(const ExchangePeers& peers, const ShareParams& p,
                                 cudaStream_t stream);
/// Fills all planes of this rank with kUnsent. Once, before any peer's first call.
cudaError_t launch_clear_planes(const ExchangePeers& peers, cudaStream_t stream);

}  // namespace lathe::cuda
