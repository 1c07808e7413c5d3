// What a kernel runs with: threads, scratch memory and the mode of splitting. It is passed, never global.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "base/threads.h"

namespace lathe {

/// Memory that a kernel reuses from call to call: it grows to the largest call and then allocates no more.
class Scratch {
 public:
  /// At least `bytes` bytes, 64-byte aligned, contents unspecified, valid until the next take(). Growing frees the old bytes first.
  std::byte* take(std::int64_t bytes) {
    if (bytes > size_) {
      bytes_.reset();
      bytes_.reset(static_cast<std::byte*>(
          ::operator new[](static_cast<std::size_t>(bytes), std::align_val_t{64})));
      size_ = bytes;
      ++growths_;
    }
    return bytes_.get();
  }
  /// Memory for a kernel that calls another one with this scratch, which the other's take() leaves
  /// alone.
  Scratch& outer() {
    if (!outer_) outer_ = std::make_unique<Scratch>();
    return *outer_;
  }
  std::int64_t size() const { return size_; }
  /// How often take() had to allocate.
  std::int64_t growths() const { return growths_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte[], Free> bytes_;
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
};

}  // namespace lathe
