// Schedule: how an attention kernel splits a step's work. The kernel's prepare() computes it once
// from the step's lengths, and the calls of all layers read it. Only the kernel knows its contents.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/execution.h"

namespace lathe {

/// Bytes in host memory and in the backend's memory. They are reused from step to step and grow to
/// the largest schedule.
class Schedule {
 public:
  explicit Schedule(const Memory& memory) : device_memory_(memory) {}

  /// Like Scratch::take(). Valid until the next call of the same function.
  std::byte* take_host(std::int64_t bytes) { return host_ = host_memory_.take(bytes); }
  std::byte* take_device(std::int64_t bytes) { return device_ = device_memory_.take(bytes); }

  /// The bytes of the last take; null if there was none.
  const std::byte* host() const { return host_; }
  const std::byte* device() const { return device_; }

 private:
  Scratch host_memory_;
  Scratch device_memory_;
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
};

}  // namespace lathe
