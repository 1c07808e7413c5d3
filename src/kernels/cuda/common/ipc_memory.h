// Device memory of another process on this host (CUDA IPC). One process exports memory and sends
// the handle by any channel. The other one opens it, and its kernels read it: copy_pages(),
// copy_slots(), requantize() and gather_decode() of the codecs take such pools as sources.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "base/result.h"

namespace lathe::cuda {

/// Exported memory, as bytes to send.
struct MemoryHandle {
  std::array<std::byte, 64> ipc = {};  // cudaIpcMemHandle_t of the whole allocation
  std::array<std::byte, 16> gpu = {};  // its UUID, which is the same in all processes
  std::int64_t offset = 0;             // bytes from the start of the allocation
  std::int64_t bytes = 0;
};
static_assert(std::is_trivially_copyable_v<MemoryHandle>);

/// The handle of `memory`, which is of one cudaMalloc() of any GPU. The memory must stay allocated
/// until all others have closed it. CUDA shares whole blocks of 2 MiB: who opens the handle can
/// also reach other small allocations of this process. Errors: memory that is not a GPU's; memory
/// that cudaMalloc() did not give, as an expandable allocator's; a system without IPC.
Result<MemoryHandle> export_memory(std::span<const std::byte> memory);

/// Another process's memory, mapped for the GPU that was current at open(). Closed at the end, when
/// no work that uses it may be pending. It stays readable if its process is killed.
class PeerMemory {
 public:
  /// Errors: a handle of this process; memory that has been freed, or whose process has ended; a
  /// GPU that the calling thread's cannot access; a system without IPC.
  static Result<PeerMemory> open(const MemoryHandle& handle);

  /// On the device.
  const std::byte* data() const { return base_.get() + offset_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Close {
    int gpu;
    void operator()(std::byte* base) const;
  };
  std::unique_ptr<std::byte, Close> base_;  // of the allocation
  std::int64_t offset_;
  std::int64_t bytes_;

  PeerMemory(std::byte* base, int gpu, const MemoryHandle& handle)
      : base_(base, Close{gpu}), offset_(handle.offset), bytes_(handle.bytes) {}
};

}  // namespace lathe::cuda
