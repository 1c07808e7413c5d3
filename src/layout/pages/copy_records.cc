#include "layout/pages/copy_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <unordered_set>
#include <utility>
#include <vector>

#include "layout/pages/copy_order.h"

namespace lathe {
namespace {

template <class Index>
std::vector<std::int32_t> numbers(std::span<const Index> list) {
  std::vector<std::int32_t> out(list.size());
  std::transform(list.begin(), list.end(), out.begin(), [](Index i) { return i.value; });
  return out;
}

// `what` is a record's name in errors.
Result<void> check_copy(std::span<const std::int32_t> src, std::int64_t src_count,
                        std::span<const std::int32_t> dst, std::int64_t dst_count,
                        std::string_view what, CopyNames names) {
  if (src.size() != dst.size()) {
    return Error{ErrorCode::invalid_argument, std::string(names.dst),
                 fmt::format("{} {}s, as {}", src.size(), what, names.src),
                 fmt::format("{}", dst.size()), ""};
  }
  const auto check = [&](std::span<const std::int32_t> list, std::int64_t count,
                         std::string_view name) -> Result<void> {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i] >= 0 && list[i] < count) continue;
      return Error{ErrorCode::out_of_range, fmt::format("{}[{}]", name, i),
                   fmt::format("a {} from 0 to {}", what, count - 1), fmt::format("{}", list[i]),
                   ""};
    }
    return {};
  };
  if (auto ok = check(src, src_count, names.src); !ok) return ok;
  if (auto ok = check(dst, dst_count, names.dst); !ok) return ok;
  std::unordered_set<std::int32_t> seen;
  seen.reserve(dst.size());
  for (std::size_t i = 0; i < dst.size(); ++i) {
    if (seen.insert(dst[i]).second) continue;
    return Error{ErrorCode::invalid_argument, fmt::format("{}[{}]", names.dst, i),
                 "every destination once", fmt::format("{} {} again", what, dst[i]), ""};
  }
  return {};
}

// Copies records of `bytes` bytes. from_at(i) and to_at(i) return the address of record i.
template <class FromAt, class ToAt>
void copy_records(bool same_pool, std::span<const std::int32_t> src,
                  std::span<const std::int32_t> dst, std::int64_t bytes, FromAt from_at,
                  ToAt to_at) {
  const auto size = static_cast<std::size_t>(bytes);
  if (!same_pool) {
    for (std::size_t i = 0; i < src.size(); ++i) std::memcpy(to_at(dst[i]), from_at(src[i]), size);
    return;
  }
  std::vector<std::byte> scratch(size);
  for (const CopyStep& step : copy_order(src, dst)) {
    std::byte* to = step.to == kCopyScratch ? scratch.data() : to_at(step.to);
    std::memcpy(to, step.from == kCopyScratch ? scratch.data() : from_at(step.from), size);
  }
}

}  // namespace

Result<void> check_copied_pools(const ConstPoolView& from, const ConstPoolView& to, CopyUnit unit,
                                CopyNames names) {
  if (from.layout != to.layout) {
    return Error{ErrorCode::invalid_argument, std::string(names.to),
                 "a pool of " + from.layout.serialize(), "one of " + to.layout.serialize(),
                 "requantize converts layouts"};
  }
  if (unit == CopyUnit::token || from.page_size == to.page_size) return {};
  return Error{ErrorCode::invalid_argument, std::string(names.to),
               fmt::format("pages of {} tokens, as from", from.page_size),
               fmt::format("pages of {}", to.page_size), "copy slots"};
}

Result<void> copy_pages(ConstPoolView from, std::span<const PageId> src, PoolView to,
                        std::span<const PageId> dst, CopyNames names) {
  if (auto ok = check_copied_pools(from, to, CopyUnit::page, names); !ok) return ok;
  const auto sources = numbers(src), targets = numbers(dst);
  if (auto ok = check_copy(sources, from.pages, targets, to.pages, "page", names); !ok) {
    return ok;
  }
  copy_records(
      one_pool(from, to), sources, targets, from.layout.page_stride(from.page_size),
      [&](std::int32_t page) { return from.data + page * from.page_stride; },
      [&](std::int32_t page) { return to.data + page * to.page_stride; });
  return {};
}

Result<void> copy_slots(ConstPoolView from, std::span<const Slot> src, PoolView to,
                        std::span<const Slot> dst, CopyNames names) {
  if (auto ok = check_copied_pools(from, to, CopyUnit::token, names); !ok) return ok;
  const auto sources = numbers(src), targets = numbers(dst);
  if (auto ok = check_copy(sources, from.slots(), targets, to.slots(), "slot", names); !ok) {
    return ok;
  }
  for (int plane = 0; plane < from.layout.plane_count(); ++plane) {
    const std::int64_t bytes = from.layout.plane_bytes(plane);
    const auto record = [&](const auto& pool) {
      return [&pool, bytes,
              start = pool.layout.plane_start(pool.page_size, plane)](std::int32_t slot) {
        return pool.data + page_of(Slot(slot), pool.page_size).value * pool.page_stride + start +
               offset_in_page(Slot(slot), pool.page_size) * bytes;
      };
    };
    copy_records(one_pool(from, to), sources, targets, bytes, record(from), record(to));
  }
  return {};
}

}  // namespace lathe
