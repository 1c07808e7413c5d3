// The GPU that this process uses, checked once before anything is allocated or launched.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"

namespace lathe::cuda {

/// Versions as CUDA counts them: 13.0 is 13000, compute capability 9.0 is 90.
struct FoundDevice {
  int driver = 0;   // newest CUDA that the driver serves; 0: no driver
  int runtime = 0;  // that this program was built with
  int counted = 0;  // status of cudaGetDeviceCount
  int count = 0;    // devices that the driver shows
  int ordinal = 0;
  int capability = 0;
  std::string model;
};

/// Errors, one for each way in which a machine can be unsuitable, with what was found and what is
/// needed: no driver, a driver older than the runtime, one that doesn't answer, no device, an
/// ordinal beyond the devices, a device other than compute capability 9.0 (code for sm_90a runs on
/// no other).
Result<void> check_device(const FoundDevice& found);

struct Device {
  int ordinal = 0;
  std::string model;
  int sms = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t block_shared_bytes = 0;  // that a block may ask for (opt-in)
  std::int64_t l2_bytes = 0;
};

/// Makes device `ordinal` the calling thread's and reads its limits. Errors: as check_device(); a
/// call of the runtime that fails.
Result<Device> open_device(int ordinal = 0);

/// Another device as the calling thread's, for as long as this lives.
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

/// Multiprocessors of the calling thread's device. Errors: a call of the runtime that fails.
Result<int> count_sms();

}  // namespace lathe::cuda
