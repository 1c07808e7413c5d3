// Arena: memory for intermediate tensors, allocated in stack order and released at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/memory.h"

namespace lathe {

/// Grows by blocks to the largest use and allocates no more from then on. Not thread-safe: the
/// thread that runs operators owns it.
class Arena {
 public:
  explicit Arena(Memory memory = kHostMemory) : memory_(memory) {}

  /// `bytes` bytes at a multiple of 64, contents unspecified, valid until the scope that is open at
  /// the call closes. Throws OutOfMemory when memory runs out.
  std::byte* take(std::int64_t bytes);
  /// Reserves `bytes` bytes in one block, if nothing is allocated yet. Throws OutOfMemory.
  void reserve(std::int64_t bytes) {
    const Scope scope(*this);
    take(bytes);
  }
  template <class T>
  T* take_array(std::int64_t n) {
    return reinterpret_cast<T*>(take(n * static_cast<std::int64_t>(sizeof(T))));
  }

  /// Releases what was allocated since it was opened.
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

  /// Peak bytes in use.
  std::int64_t high_water() const { return high_water_; }
  /// Bytes of all blocks.
  std::int64_t capacity() const;
  /// How often take() had to allocate.
  std::int64_t growths() const { return static_cast<std::int64_t>(blocks_.size()); }

 private:
  struct Block {
    OwnedBytes bytes;
    std::int64_t size = 0;
  };
  Memory memory_;
  std::vector<Block> blocks_;
  std::size_t block_ = 0;  // the one that take() fills
  std::int64_t used_ = 0;  // bytes of it
  std::int64_t taken_ = 0, high_water_ = 0;
};

}  // namespace lathe
