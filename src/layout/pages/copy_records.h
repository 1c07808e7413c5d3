// Copies of whole tokens or pages, byte for byte, within a pool or between pools of one layout.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// What errors call the arguments of a copy.
struct CopyNames {
  std::string_view src = "src";
  std::string_view dst = "dst";
  std::string_view to = "to";
};

/// Whether both are views of one pool, so that an index names the same bytes in both.
inline bool one_pool(const ConstPoolView& a, const ConstPoolView& b) {
  return a.data == b.data && a.page_size == b.page_size && a.page_stride == b.page_stride;
}

enum class CopyUnit { token, page };

/// Errors: pools of two layouts; of two page sizes, where pages are copied.
Result<void> check_copied_pools(const ConstPoolView& from, const ConstPoolView& to, CopyUnit unit,
                                CopyNames names);

/// Copies page src[i] of `from` to dst[i] of `to`, padding included. Two pools must share no bytes.
/// If both are one pool, all sources are read as if before the first write, so the lists may
/// overlap. A source may repeat. Needs memory for one page. Errors, with nothing written: another
/// layout or page size; lists of different sizes; a page that is -1 or outside its pool; a repeated
/// destination.
Result<void> copy_pages(ConstPoolView from, std::span<const PageId> src, PoolView to,
                        std::span<const PageId> dst, CopyNames names = {});

/// Copies token src[i] of `from` to dst[i] of `to`, by the rules of copy_pages(), but page sizes of
/// two pools may differ.
Result<void> copy_slots(ConstPoolView from, std::span<const Slot> src, PoolView to,
                        std::span<const Slot> dst, CopyNames names = {});

}  // namespace lathe
