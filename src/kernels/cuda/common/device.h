// The GPU that this process uses, checked once before anything is allocated or launched.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"

namespace lathe::cuda {

/// Versions are encoded as CUDA does it: 13.0 is 13000, compute capability 9.0 is 90.
struct FoundDevice {
  int driver = 0;   // newest CUDA version that the driver supports; 0: no driver
  int runtime = 0;  // CUDA version that this program was built with
  int counted = 0;  // status of cudaGetDeviceCount
  int count = 0;    // devices that the driver shows
  int ordinal = 0;
  int capability = 0;
  std::string model;
};

/// Errors, each with what was found and what is needed: no driver, a driver older than the runtime,
/// a driver that doesn't answer, no device, an ordinal out of range, a device whose compute
/// capability is not 9.0 (sm_90a code runs on no other).
Result<void> check_device(const FoundDevice& found);

struct Device {
  int ordinal = 0;
  std::string model;
  int sms = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t block_shared_bytes = 0;  // most shared memory of a block (opt-in)
  std::int64_t l2_bytes = 0;
};

/// Makes device `ordinal` the calling thread's current device and reads its limits. Errors: as
/// check_device(), or a failed runtime call.
Result<Device> open_device(int ordinal = 0);

/// Makes another device current for the calling thread until it is destroyed.
class OnDevice {
 public:
  /// Errors: as open_device().
  static Result<OnDevice> make(int ordinal);
  ~OnDevice();
  OnDevice(OnDevice&& other) noexcept : before_(std::exchange(other.before_, kNone)) {}

 private:
  static constexpr int kNone = -1;
  explicit OnDevice(int before) : before_(before) {}
  int before_;
};

/// Lets kernels of the calling thread's device access memory of `peer`. Nothing if they can
/// already. Errors: a failed runtime call.
Result<void> enable_peer_access(int peer);

/// Multiprocessors of the calling thread's device. Errors: a failed runtime call.
Result<int> count_sms();

}  // namespace lathe::cuda
