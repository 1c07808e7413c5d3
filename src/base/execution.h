// What a kernel runs with: threads or a stream, scratch memory and the mode of splitting. It is
// passed, never global.
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

/// Memory that a kernel reuses from call to call: it grows to the largest call and then allocates
/// no more.
class Scratch {
 public:
  explicit Scratch(Memory memory = kHostMemory) : memory_(memory) {}

  const Memory& memory() const { return memory_; }
  /// At least `bytes` bytes, 64-byte aligned, contents unspecified, valid until the next take().
  /// Null when a device is out of memory; the host throws OutOfMemory. On the host, growing frees
  /// the old bytes first. On a device they live as long as the scratch, because captured graphs
  /// hold their address, and a later call that fits them reuses them; growing doubles while there
  /// is room, so all of them together are at most twice the last.
  std::byte* take(std::int64_t bytes) {
    if (bytes <= size_) return bytes_.get();
    if (!keeps_outgrown()) {
      bytes_.reset();
      size_ = 0;
    }
    if (keeps_outgrown() && 2 * size_ > bytes && grow(2 * size_)) return bytes_.get();
    return grow(bytes) ? bytes_.get() : nullptr;
  }
  /// Memory for a kernel that passes this scratch on to another one, whose take() leaves it alone.
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
  // Cuts follow a request's own keys, so its bits depend on the request alone. When off, they
  // follow threads or blocks and the batch, and a chunked prompt may differ from a one-shot one in
  // the last bits. None: on where a CPU computes, off on a GPU.
  std::optional<bool> batch_invariant = {};
  void* stream = nullptr;  // of a GPU (cudaStream_t); null: its default stream
};

}  // namespace lathe
