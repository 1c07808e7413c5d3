// Kernels that only copy bytes to and from unordered slots: an upper limit for scattered codecs.
#include "kernels/cuda/sm90/codec/scatter_gpu_bench.h"

#include <type_traits>

#include "kernels/cuda/common/hopper.cuh"

namespace lathe::cuda {
namespace {

using Address = unsigned long long;

constexpr int kThreads = 256;
constexpr int kAhead = 32768;  // rows ahead for which slots are prefetched

enum class Way { write, read };               // of records
enum class Hints { none, keep, drop, both };  // ScatterShape::keeps and drops

// ScatterShape at compile time.
template <Way kWay, int kRowBytes, int kRecordBytes, int kScaleBytes, int kRowLanes, int kLaneRows,
          Hints kHints = Hints::none>
struct Shape {
  static constexpr bool kReads = kWay == Way::read;
  static constexpr int kRow = kRowBytes, kRecord = kRecordBytes, kScales = kScaleBytes;
  static constexpr int kLanes = kRowLanes, kRows = kLaneRows;
  static constexpr bool kKeeps = kHints == Hints::keep || kHints == Hints::both;
  static constexpr bool kDrops = kHints == Hints::drop || kHints == Hints::both;
  // Rounded up to a multiple of a record.
  static constexpr int kPage =
      (kScatterPage * (kRecord + kScales) + kRecord - 1) / kRecord * kRecord;
};

template <class S>
__device__ Address record_at(const ScatterPlaces& p, int slot) {
  return p.pool + Address{S::kPage} * (slot / kScatterPage) + slot % kScatterPage * S::kRecord;
}
template <class S>
__device__ Address scales_at(const ScatterPlaces& p, int slot) {
  return p.pool + Address{S::kPage} * (slot / kScatterPage) + kScatterPage * S::kRecord +
         slot % kScatterPage * S::kScales;
}

template <Keep kKeep, class T>
__device__ T load_hinted(Address at, bool hinted) {
  return hinted ? load_kept<T, kKeep>(at) : load_global<T>(at);
}
template <Keep kKeep, class T>
__device__ void store_hinted(Address at, T v, bool hinted) {
  return hinted ? store_kept<kKeep>(at, v) : store_global(at, v);
}

__device__ void mix(uint4& into, const uint4& v) {
  into = {into.x ^ v.x, into.y ^ v.y, into.z ^ v.z, into.w ^ v.w};
}

__device__ void prefetch_slots(const ScatterPlaces& p, Address first, int rows) {
  const Address mine = threadIdx.x * 8, at = first + kAhead + mine;  // a sector
  if (mine < rows && at < p.count) prefetch_global(p.slots + at);
}

template <class S>
__global__ void __launch_bounds__(kThreads) move_by_lanes(const ScatterPlaces p) {
  constexpr int kLanes = S::kLanes, kRows = S::kRows, kGroups = kThreads / kLanes;
  constexpr int kFrom = (S::kReads ? S::kRecord : S::kRow) / 16;
  constexpr int kTo = (S::kReads ? S::kRow : S::kRecord) / 16;
  constexpr int kIn = (kFrom + kLanes - 1) / kLanes, kOut = (kTo + kLanes - 1) / kLanes;
  using Scale = std::conditional_t<S::kScales == 8, uint2, std::uint32_t>;
  constexpr int kScales = S::kScales / sizeof(Scale);
  static_assert(kScales <= kLanes);
  const Address first = Address{blockIdx.x} * kGroups * kRows;
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  prefetch_slots(p, first, kGroups * kRows);
  int slot[kRows];
  uint4 in[kRows][kIn] = {}, scales[kRows] = {};
  LATHE_UNROLL
  for (int r = 0; r < kRows; ++r) slot[r] = p.slots[first + r * kGroups + group];
  LATHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Address row = p.rows + (first + r * kGroups + group) * S::kRow;
    const Address from = S::kReads ? record_at<S>(p, slot[r]) : row;
    LATHE_UNROLL
    for (int i = 0; i < kIn; ++i) {
      const int access = i * kLanes + lane;
      if (kFrom % kLanes != 0 && access >= kFrom) continue;
      in[r][i] = load_hinted<Keep::shortest, uint4>(from + access * 16, S::kDrops);
    }
    if (S::kReads && kScales > 0 && (kScales == 1 || lane < kScales)) {
      const Address at = scales_at<S>(p, slot[r]) + (kScales == 1 ? 0 : lane) * sizeof(Scale);
      reinterpret_cast<Scale&>(scales[r]) = load_hinted<Keep::longest, Scale>(at, S::kKeeps);
    }
  }
  LATHE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    uint4 out[kOut] = {scales[r]};
    LATHE_UNROLL
    for (int i = 0; i < (kIn > kOut ? kIn : kOut); ++i) mix(out[i % kOut], in[r][i % kIn]);
    const Address row = p.rows + (first + r * kGroups + group) * S::kRow;
    const Address to = S::kReads ? row : record_at<S>(p, slot[r]);
    LATHE_UNROLL
    for (int i = 0; i < kOut; ++i) {
      const int access = i * kLanes + lane;
      if (kTo % kLanes != 0 && access >= kTo) continue;
      store_hinted<Keep::shortest>(to + access * 16, out[i], S::kDrops);
    }
    if (!S::kReads && lane < kScales) {
      store_hinted<Keep::longest>(scales_at<S>(p, slot[r]) + lane * sizeof(Scale),
                                  reinterpret_cast<Scale&>(out[0]), S::kKeeps);
    }
  }
}

// Assembles records in shared memory and writes each with one bulk copy.
template <class S>
__global__ void __launch_bounds__(kThreads) write_by_copies(const ScatterPlaces p) {
  constexpr int kFrom = S::kRow / 16, kTo = S::kRecord / 16, kAccesses = S::kRows * kTo;
  constexpr int kRounds = (kAccesses + kThreads - 1) / kThreads;
  static_assert(!S::kReads && !S::kDrops && S::kRows <= kThreads);
  static_assert(S::kScales == 0 || S::kScales == 8);
  __shared__ alignas(128) uint4 records[kAccesses];
  const Address first = Address{blockIdx.x} * S::kRows;
  const int thread = threadIdx.x;
  prefetch_slots(p, first, S::kRows);
  uint4 v[kRounds] = {};
  LATHE_UNROLL
  for (int i = 0; i < kRounds; ++i) {
    const int row = (i * kThreads + thread) / kTo, access = (i * kThreads + thread) % kTo;
    LATHE_UNROLL
    for (int at = 0; at < kFrom; at += kTo) {
      if (row >= S::kRows || at + access >= kFrom) continue;
      mix(v[i], load_global<uint4>(p.rows + (first + row) * S::kRow + (at + access) * 16));
    }
  }
  LATHE_UNROLL
  for (int i = 0; i < kRounds; ++i) {
    if (i * kThreads + thread < kAccesses) records[i * kThreads + thread] = v[i];
  }
  fence_async_proxy();
  sync_block();
  if (thread >= S::kRows) return;
  const int slot = p.slots[first + thread];
  copy_out(record_at<S>(p, slot), shared_address(records + thread * kTo), S::kRecord);
  if (S::kScales != 0) {
    store_hinted<Keep::longest>(scales_at<S>(p, slot),
                                reinterpret_cast<uint2&>(records[thread * kTo]), S::kKeeps);
  }
  wait_copies_out();
}

template <class S>
cudaError_t launch(const ScatterPlaces& p, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(p.count);
  if constexpr (S::kLanes == 0) {
    write_by_copies<S><<<rows / S::kRows, kThreads, 0, stream>>>(p);
  } else {
    move_by_lanes<S><<<rows / (kThreads / S::kLanes * S::kRows), kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

template <class S>
constexpr ScatterCase make(const char* layout) {
  return {layout,
          {S::kReads, S::kRow, S::kRecord, S::kScales, S::kLanes, S::kRows, S::kKeeps, S::kDrops,
           S::kPage},
          launch<S>};
}

}  // namespace

std::span<const ScatterCase> scatter_cases() {
  static const ScatterCase cases[] = {
      make<Shape<Way::write, 256, 128, 0, 8, 2>>("index_fp8"),
      make<Shape<Way::write, 256, 128, 4, 8, 4, Hints::both>>("index_fp8"),
      make<Shape<Way::write, 1024, 576, 0, 0, 16>>("v4_fp8"),
      make<Shape<Way::write, 1024, 576, 8, 0, 16, Hints::keep>>("v4_fp8"),
      make<Shape<Way::write, 1152, 288, 0, 16, 1>>("mla_fp4"),
      make<Shape<Way::write, 1152, 288, 36, 32, 2, Hints::keep>>("mla_fp4"),
      make<Shape<Way::write, 1152, 656, 0, 0, 16>>("mla_fp8_block"),
      make<Shape<Way::write, 1152, 576, 0, 0, 16>>("mla_fp8"),
      make<Shape<Way::read, 256, 128, 0, 8, 1>>("index_fp8"),
      make<Shape<Way::read, 256, 128, 4, 8, 1, Hints::both>>("index_fp8"),
      make<Shape<Way::read, 1024, 576, 0, 32, 1>>("v4_fp8"),
      make<Shape<Way::read, 1024, 576, 8, 32, 1, Hints::keep>>("v4_fp8"),
      make<Shape<Way::read, 1152, 288, 0, 32, 1, Hints::drop>>("mla_fp4"),
      make<Shape<Way::read, 1152, 288, 36, 32, 1, Hints::keep>>("mla_fp4"),
      make<Shape<Way::read, 1152, 656, 0, 32, 1>>("mla_fp8_block"),
      make<Shape<Way::read, 1152, 576, 0, 32, 1>>("mla_fp8"),
  };
  return cases;
}

}  // namespace lathe::cuda
