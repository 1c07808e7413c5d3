// What a kernel runs with: threads or a stream, scratch memory and the mode of splitting. It is
// passed, never global.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "base/threads.h"

namespace lathe {

/// Memory that a kernel reuses from call to call: it grows to the largest call and then allocates
/// no more.
class Scratch {
 public:
  explicit Scratch(Memory memory = kHostMemory) : memory_(memory) {}

  const Memory& memory() const { return memory_; }
  /// At least `bytes` bytes, 64-byte aligned, contents unspecified, valid until the next take().
  /// Null where a device has no more; the host throws OutOfMemory. Growing frees the old bytes
  /// first, but for a device's: captured graphs have their address, so they stay for as long as the
  /// scratch does and a next call that they suffice for takes them. Growing then doubles where
  /// there is room, so that all of them are at most twice the last.
  std::byte* take(std::int64_t bytes) {
    if (bytes <= size_) return bytes_.get();
    if (!keeps_outgrown()) {
      bytes_.reset();
      size_ = 0;
    }
    if (keeps_outgrown() && 2 * size_ > bytes && grow(2 * size_)) return bytes_.get();
    return grow(bytes) ? bytes_.get() : nullptr;
  }
  /// Memory for a kernel that calls another one with this scratch, which the other's take() leaves
  /// alone.
  Scratch& outer() {
    if (!outer_) outer_ = std::make_unique<Scratch>(memory_);
    return *outer_;
  }
  std::int64_t size() const { return size_; }
  /// How often take() had to allocate.
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
  // A request's bits depend on nothing but the request: splits have a fixed length. Off, they
  // follow threads and batch, and a prompt's chunks may differ from one shot in the last bits.
  bool batch_invariant = true;
  void* stream = nullptr;  // of a GPU (cudaStream_t); null: its default stream
};

}  // namespace lathe
