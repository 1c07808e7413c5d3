// What a kernel runs with: threads or a stream, scratch memory and the mode of splitting. It is passed, never global.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/threads.h"

namespace lathe {

/// Memory that a kernel reuses from call to call: it grows to the largest call and then allocates no more.
class Scratch {
 public:
  /// Where the bytes come from. allocate gives null where there are no more.
  struct Memory {
    std::byte* (*allocate)(std::int64_t bytes);
    void (*free)(std::byte* bytes);
    // Bytes that were outgrown stay for as long as the scratch does, as graphs have their address. Growing then doubles
    // where there is room, so that all of them are at most twice the last.
    bool keeps_outgrown = false;

    bool operator==(const Memory&) const = default;
  };
  static constexpr Memory host() {
    return {[](std::int64_t bytes) {
              return static_cast<std::byte*>(
                  ::operator new[](static_cast<std::size_t>(bytes), std::align_val_t{64}));
            },
            [](std::byte* bytes) { ::operator delete[](bytes, std::align_val_t{64}); }};
  }

  Scratch() : Scratch(host()) {}
  explicit Scratch(Memory memory) : memory_(memory), bytes_(nullptr, memory.free) {}

  const Memory& memory() const { return memory_; }
  /// At least `bytes` bytes, 64-byte aligned, contents unspecified, valid until the next take(). Growing frees the old bytes
  /// first, where the memory does not keep them. Null where the memory has no more, which the host's never says;
  /// bytes that are kept are taken by the next call that they suffice for.
  std::byte* take(std::int64_t bytes) {
    if (bytes <= size_) return bytes_.get();
    if (!memory_.keeps_outgrown) {
      bytes_.reset();
      size_ = 0;
    }
    if (memory_.keeps_outgrown && 2 * size_ > bytes && grow(2 * size_)) return bytes_.get();
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
  using Bytes = std::unique_ptr<std::byte[], void (*)(std::byte*)>;

  bool grow(std::int64_t bytes) {
    Bytes larger(memory_.allocate(bytes), memory_.free);
    if (!larger) return false;
    if (bytes_) outgrown_.push_back(std::move(bytes_));
    bytes_ = std::move(larger);
    size_ = bytes;
    ++growths_;
    return true;
  }

  Memory memory_;
  Bytes bytes_;
  std::vector<Bytes> outgrown_;
  std::unique_ptr<Scratch> outer_;
  std::int64_t size_ = 0;
  std::int64_t growths_ = 0;
};

struct Execution {
  ThreadPool* threads = nullptr;  // null: the calling thread alone
  Scratch* scratch = nullptr;     // null: a call allocates its own
  // A request's bits depend on nothing but the request: splits have a fixed length. Off, they follow
  // threads and batch, and a prompt's chunks may differ from one shot in the last bits.
  bool batch_invariant = true;
  void* stream = nullptr;  // of a GPU (cudaStream_t); null: its default stream
};

}  // namespace lathe
