// Checks of a step's arguments. Only counts can be checked: the lists are on the device.
#pragma once

#include "attn/check_count.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {

template <class T>
Result<void> check_optional(const char* field, std::span<T> list, std::int64_t wanted) {
  if (list.empty()) return {};
  return check_count(field, list, wanted);
}
template <class T>
Result<void> check_room(const char* field, std::span<T> list, std::int64_t needed) {
  if (std::ssize(list) >= needed) return {};
  return Error{ErrorCode::exhausted, field, fmt::format("room for {}", needed),
               fmt::format("{}", list.size()), ""};
}

inline Result<void> check_lists(const DevicePageLists& lists, PoolShape pool) {
  if (auto ok = check_pool_shape(pool); !ok) return ok;
  if (lists.indptr.empty()) return bad_number("indptr", "requests + 1 entries", 0);
  if (auto ok = check_range("pages", std::ssize(lists.pages), 0); !ok) return ok;
  return check_range("requests", lists.requests(), 0);
}

}  // namespace lathe::cuda
