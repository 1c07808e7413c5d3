// A checked call on a GPU's arrays, and the memory that calls on a stream share.
#pragma once

#include <nanobind/nanobind.h>

#ifdef LATHE_HAS_CUDA
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attn/attend.h"
#include "attn/call_part.h"
#include "base/execution.h"
#include "kernels/cuda/common/memory.h"

namespace lathe::python {

/// A list of fixed numbers on the calling thread's device. Graphs may use it as long as this lives:
/// growing keeps the old memory.
class GpuList {
 public:
  explicit GpuList(std::int32_t (*entry)(std::int64_t at)) : entry_(entry) {}
  /// The first `count` entries. Growing waits for the stream, and cannot be captured. Errors: no
  /// memory.
  std::span<const std::int32_t> take(std::int64_t count, cudaStream_t stream);

 private:
  std::int32_t (*entry_)(std::int64_t at);
  std::vector<OwnedBytes> kept_;
  std::int64_t size_ = 0;
};

/// Memory that the calls on one stream of one GPU share.
class GpuScratch {
 public:
  explicit GpuScratch(int ordinal);
  ~GpuScratch();
  int ordinal() const { return ordinal_; }
  Scratch& scratch() { return kept_->scratch; }
  GpuList& numbers() { return kept_->numbers; }  // 0, 1, 2, 3, ...
  GpuList& pairs() { return kept_->pairs; }      // 0, 0, 0, 1, 0, 2, ...
  GpuList& holes() { return kept_->holes; }      // -1, -1, ...

 private:
  struct Kept {
    Scratch scratch{cuda::kDeviceMemory};
    GpuList numbers{[](std::int64_t at) { return static_cast<std::int32_t>(at); }};
    GpuList pairs{[](std::int64_t at) { return static_cast<std::int32_t>(at % 2 * (at / 2)); }};
    GpuList holes{[](std::int64_t) { return std::int32_t{-1}; }};
  };
  int ordinal_;
  std::optional<Kept> kept_;
};

/// Where a call's q_indptr and kv_lens come from.
enum class LengthsOf { arrays, a_row_each, one_request, listed_rows, host };

struct GpuCall {
  AttendArgs args;
  AttendFn attend = nullptr;
  LengthsOf lengths = LengthsOf::arrays;
  std::optional<std::span<std::byte>> workspace;
  CallPart part = CallPart::both;
  // For a repeated call: its scratch, and the object that was kept with the first call.
  nanobind::object scratch;
  std::uintptr_t stream = 0;
  nanobind::object kept;

  /// Points q_indptr and kv_lens, if the caller gave none, to the stream's own lists. Errors: no
  /// memory.
  void take_lengths(GpuScratch& keeper, cudaStream_t on);
  /// Launches the call on the stream, without the interpreter's lock. Precondition: its device is
  /// the calling thread's. Errors: the kernel's.
  void run(GpuScratch& keeper, cudaStream_t on);
};

}  // namespace lathe::python
#endif
