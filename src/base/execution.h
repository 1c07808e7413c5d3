// What a kernel runs with: threads or a stream, scratch memory, and how it may split work. Every
// call gets it as an argument; none of it is global.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "base/threads.h"

namespace lathe {

/// Memory that a kernel reuses from call to call. It grows to the size of the largest call; after
/// that it allocates nothing.
class Scratch {
 public:
  explicit Scratch(Memory memory = kHostMemory) : memory_(memory) {}

  const Memory& memory() const { return memory_; }
  /// Returns at least `bytes` uninitialised bytes, 64-byte aligned, valid until the next take().
  /// Out of memory: throws OutOfMemory on the host, returns null on a device.
  ///
  /// On the host, growing frees the old bytes first. On a device the old bytes live as long as the
  /// Scratch, because captured CUDA graphs contain their address. There each allocation doubles
  /// while memory lasts, so all of them together are at most twice the last one.
  std::byte* take(std::int64_t bytes) {
    if (bytes <= size_) return bytes_.get();
    if (!keeps_outgrown()) {
      bytes_.reset();
      size_ = 0;
    }
    if (keeps_outgrown() && 2 * size_ > bytes && grow(2 * size_)) return bytes_.get();
    return grow(bytes) ? bytes_.get() : nullptr;
  }
  /// A second Scratch, for a kernel that calls another kernel with this one: take() here leaves
  /// the bytes of outer() unchanged.
  Scratch& outer() {
    if (!outer_) outer_ = std::make_unique<Scratch>(memory_);
    return *outer_;
  }
  std::int64_t size() const { return size_; }
  /// Number of allocations so far.
  std::int64_t growths() const { return growths_; }

 private:
  bool keeps_outgrown() const { return memory_.kind == MemoryKind::device; }
  bool grow(std::int64_t bytes) {
    auto larger = memory_.allocate(bytes);
    if (!larger && memory_.kind == MemoryKind::host) throw OutOfMemory(larger.error());
    if (!larger) return false;
    if (bytes_) outgrown_.push_back(std::move(bytes_));
    bytes_ = std::move(larger).value();
    size_ = bytes;
    ++growths_;
    return true;
  }

  Memory memory_;
  OwnedBytes bytes_{nullptr, nullptr};
  std::vector<OwnedBytes> outgrown_;
  std::unique_ptr<Scratch> outer_;
  std::int64_t size_ = 0;
  std::int64_t growths_ = 0;
};

struct Execution {
  ThreadPool* threads = nullptr;  // null: the calling thread alone
  Scratch* scratch = nullptr;     // null: a call allocates its own
  // True: work is split only by the request's own keys, so a request's bits do not depend on the
  // rest of the batch. False: the split depends on the batch and on the number of threads or
  // blocks, and a prompt computed in chunks may differ in the last bits from one computed at once.
  // None: true on a CPU, false on a GPU.
  std::optional<bool> batch_invariant = {};
  void* stream = nullptr;  // GPU only: a cudaStream_t; null: the default stream
};

}  // namespace lathe
