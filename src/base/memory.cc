#include "base/memory.h"

#include <new>
#include <string>

namespace lathe {

Result<OwnedBytes> allocate_host_bytes(std::int64_t bytes) {
  constexpr std::align_val_t kAlign{64};
  auto* data = static_cast<std::byte*>(
      ::operator new(static_cast<std::size_t>(bytes), kAlign, std::nothrow));
  if (data == nullptr) {
    return Error{ErrorCode::exhausted, "host memory", std::to_string(bytes) + " bytes",
                 "less than that", "lower the budget"};
  }
  return OwnedBytes(data, [](std::byte* p) { ::operator delete(p, kAlign); });
}

}  // namespace lathe
