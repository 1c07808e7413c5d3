// Schedule: what an attention kernel makes once of a step's lengths, in prepare(), and reads in the
// calls of every layer that shares the step. Its contents are the kernel's own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/execution.h"

namespace lathe {

/// Bytes of the host and of the backend's memory, reused from step to step: they grow to the
/// largest.
class Schedule {
 public:
  explicit Schedule(const Memory& memory) : device_memory_(memory) {}

  /// As Scratch::take(); until the next call of the same.
  std::byte* take_host(std::int64_t bytes) { return host_ = host_memory_.take(bytes); }
  std::byte* take_device(std::int64_t bytes) { return device_ = device_memory_.take(bytes); }

  /// What was taken last; null: nothing.
  const std::byte* host() const { return host_; }
  const std::byte* device() const { return device_; }

 private:
  Scratch host_memory_;
  Scratch device_memory_;
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
};

}  // namespace lathe
