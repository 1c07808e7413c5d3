// Codecs: encode rows into a pool of KV-cache pages, and decode them.
#pragma once

#include <lathe/lathe.h>
#include <lathe/layout.h>
#include <lathe/result.h>
#include <lathe/tensor.h>

#include <cstdint>

namespace lathe {
inline namespace api {

/// Pages of one layout in the caller's memory. Slot s is token s % page_size of page s / page_size.
struct Pool {
  Layout layout;
  Tensor pages;  // uint8 [bytes], or [pages, bytes]
  std::int64_t page_size = 64;
  float key_scale = 1;  // tensor scales of mla_fp8 (key) and gqa_fp8 (both)
  float value_scale = 1;
};

/// A Pool as the C struct. It points to its own `tensor` and to the Pool, which must outlive it.
struct PoolView {
  explicit PoolView(const Pool& pool) : tensor(pool.pages.view()) {
    view.size = sizeof view;
    view.layout = pool.layout.get();
    view.pages = &tensor;
    view.page_size = pool.page_size;
    view.key_scale = pool.key_scale;
    view.value_scale = pool.value_scale;
  }
  PoolView(const PoolView&) = delete;
  lathe_tensor tensor;
  lathe_pool_view view{};
};

/// Encodes row i of rows [n, row_elems] (float32, bfloat16) into slot slots[i]; -1 skips it.
inline Result<void> encode(const Pool& pool, const Tensor& rows, const Tensor& slots) {
  const PoolView to(pool);
  const lathe_tensor r = rows.view(), s = slots.view();
  return Result<void>(lathe_encode(&to.view, &r, &s));
}

/// Decodes slot slots[i] into row i of out [n, row_elems]; -1 gives zeros.
inline Result<void> gather_decode(const Pool& pool, const Tensor& slots, const Tensor& out) {
  const PoolView from(pool);
  const lathe_tensor s = slots.view(), o = out.view();
  return Result<void>(lathe_gather_decode(&from.view, &s, &o));
}

/// mla_fp8 to mla_fp8_block (exact at scale 1) or back (lossy).
inline Result<lathe_requantize_report> requantize(const Pool& from, const Tensor& from_slots,
                                                  const Pool& to, const Tensor& to_slots) {
  const PoolView src(from), dst(to);
  const lathe_tensor s = from_slots.view(), d = to_slots.view();
  lathe_requantize_report report{};
  report.size = sizeof report;
  const lathe_status status = lathe_requantize(&src.view, &s, &dst.view, &d, &report);
  if (status != LATHE_OK) return last_error(status);
  return report;
}

/// Copies page from_pages[i] to to_pages[i], byte for byte: lathe_copy_pages().
inline Result<void> copy_pages(const Pool& from, const Tensor& from_pages, const Pool& to,
                               const Tensor& to_pages) {
  const PoolView src(from), dst(to);
  const lathe_tensor f = from_pages.view(), t = to_pages.view();
  return Result<void>(lathe_copy_pages(&src.view, &f, &dst.view, &t));
}

/// Copies the token in from_slots[i] to to_slots[i], byte for byte: lathe_copy_slots().
inline Result<void> copy_slots(const Pool& from, const Tensor& from_slots, const Pool& to,
                               const Tensor& to_slots) {
  const PoolView src(from), dst(to);
  const lathe_tensor f = from_slots.view(), t = to_slots.view();
  return Result<void>(lathe_copy_slots(&src.view, &f, &dst.view, &t));
}

}  // namespace api
}  // namespace lathe
