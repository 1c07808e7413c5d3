// Arena: memory for intermediate tensors. It is allocated in stack order, and a scope frees all of
// its allocations together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/memory.h"

namespace lathe {

/// Grows block by block up to the largest use; after that it allocates nothing. Not thread-safe:
/// only the thread that runs operators may use it.
class Arena {
 public:
  explicit Arena(Memory memory = kHostMemory) : memory_(memory) {}

  /// Returns `bytes` uninitialised bytes, 64-byte aligned, valid until the current Scope ends.
  /// Throws OutOfMemory if the memory has no more.
  std::byte* take(std::int64_t bytes);
  /// Allocates a block of `bytes` in advance. Call it before the first take(). Throws OutOfMemory.
  void reserve(std::int64_t bytes) {
    const Scope scope(*this);
    take(bytes);
  }
  template <class T>
  T* take_array(std::int64_t n) {
    return reinterpret_cast<T*>(take(n * static_cast<std::int64_t>(sizeof(T))));
  }

  /// Frees, when it ends, everything allocated since it began.
  class Scope {
   public:
    explicit Scope(Arena& arena)
        : arena_(arena), block_(arena.block_), used_(arena.used_), taken_(arena.taken_) {}
    ~Scope() {
      arena_.block_ = block_;
      arena_.used_ = used_;
      arena_.taken_ = taken_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    std::size_t block_;
    std::int64_t used_, taken_;
  };

  /// Most bytes in use at one time.
  std::int64_t high_water() const { return high_water_; }
  /// Bytes of all blocks.
  std::int64_t capacity() const;
  /// Number of blocks allocated.
  std::int64_t growths() const { return static_cast<std::int64_t>(blocks_.size()); }

 private:
  struct Block {
    OwnedBytes bytes;
    std::int64_t size = 0;
  };
  Memory memory_;
  std::vector<Block> blocks_;
  std::size_t block_ = 0;  // index of the block that take() uses
  std::int64_t used_ = 0;  // bytes used in that block
  std::int64_t taken_ = 0, high_water_ = 0;
};

}  // namespace lathe
