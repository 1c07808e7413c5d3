#include "base/memory.h"

#include <fmt/format.h>

#include <fstream>
#include <new>
#include <string>

namespace lathe {

std::string host_memory_text() {
  std::ifstream file("/proc/meminfo");
  double total = 0, available = 0;  // KiB
  std::string key, unit;
  for (double value = 0; file >> key >> value; std::getline(file, unit)) {
    if (key == "MemTotal:") total = value;
    if (key == "MemAvailable:") available = value;
  }
  constexpr double kGigabyte = 1e9 / 1024;
  if (total == 0) return "as much as the system gives";
  return fmt::format("{:.1f} of {:.1f} GB free", available / kGigabyte, total / kGigabyte);
}

Result<OwnedBytes> allocate_host_bytes(std::int64_t bytes) {
  constexpr std::align_val_t kAlign{64};
  auto* data = static_cast<std::byte*>(
      ::operator new(static_cast<std::size_t>(bytes), kAlign, std::nothrow));
  if (data == nullptr) {
    return Error{ErrorCode::exhausted, "host memory", fmt::format("{} bytes more", bytes),
                 "less: " + host_memory_text(),
                 "a smaller --max-total-tokens, --chunked-prefill-size or --max-running-requests"};
  }
  return OwnedBytes(data, [](std::byte* p) { ::operator delete(p, kAlign); });
}

}  // namespace lathe
