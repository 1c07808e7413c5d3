// The C interface's codecs.
#include "layout/codec/codec.h"

#include "capi/status.h"
#include "capi/tensors.h"
#include "layout/pages/copy_records.h"

using namespace lathe;
using namespace lathe::capi;

namespace {

// The codecs' results are undefined if input and output overlap.
Result<void> need_apart(const Tensor& to, const Tensor& from) {
  if (!to.ref().overlaps(from.ref())) return {};
  return to.ref().wrong("memory apart from " + from.ref().argument, "memory that they share");
}

Result<void> take_rows(Tensor& tensor, const lathe_tensor* rows, const char* argument) {
  if (auto ok = tensor.take(rows, argument); !ok) return ok;
  return tensor.ref().need_rank(2, "[rows, row_elems]");
}

Result<std::vector<Slot>> take_slots(const lathe_tensor* slots, const char* argument) {
  Tensor tensor;
  if (auto ok = tensor.take(slots, argument); !ok) return ok.error();
  return slot_list(tensor.ref());
}

// Two pools of a copy, and their lists.
template <class ListOf, class Copy>
lathe_status copy(const lathe_pool_view* from, const lathe_tensor* from_list,
                  const lathe_pool_view* to, const lathe_tensor* to_list, CopyNames names,
                  ListOf list_of, Copy copy_all) {
  return guard([&]() -> Result<void> {
    PoolRef src;
    PoolRef dst;
    Tensor sources;
    Tensor targets;
    if (auto ok = src.take(from, "from"); !ok) return ok;
    if (auto ok = dst.take(to, "to"); !ok) return ok;
    if (auto ok = sources.take(from_list, std::string(names.src)); !ok) return ok;
    if (auto ok = targets.take(to_list, std::string(names.dst)); !ok) return ok;
    const auto src_places = list_of(sources.ref());
    if (!src_places) return src_places.error();
    const auto dst_places = list_of(targets.ref());
    if (!dst_places) return dst_places.error();
    if (!one_pool(*src.view, *dst.view)) {
      if (auto ok = need_apart(dst.pages, src.pages); !ok) return ok;
    }
    return copy_all(*src.view, *src_places, *dst.view, *dst_places, names);
  });
}

}  // namespace

lathe_status lathe_encode(const lathe_pool_view* pool, const lathe_tensor* rows,
                          const lathe_tensor* slots) {
  return guard([&]() -> Result<void> {
    PoolRef to;
    Tensor from;
    if (auto ok = to.take(pool, "pool"); !ok) return ok;
    if (auto ok = take_rows(from, rows, "rows"); !ok) return ok;
    const auto view = rows_view(from.ref());
    if (!view) return view.error();
    const auto places = take_slots(slots, "slots");
    if (!places) return places.error();
    if (auto ok = need_apart(to.pages, from); !ok) return ok;
    return encode_rows(*view, *places, *to.view, to.scales);
  });
}

lathe_status lathe_gather_decode(const lathe_pool_view* pool, const lathe_tensor* slots,
                                 const lathe_tensor* out) {
  return guard([&]() -> Result<void> {
    PoolRef from;
    Tensor to;
    if (auto ok = from.take(pool, "pool"); !ok) return ok;
    const auto places = take_slots(slots, "slots");
    if (!places) return places.error();
    if (auto ok = take_rows(to, out, "out"); !ok) return ok;
    const auto view = mutable_rows_view(to.ref());
    if (!view) return view.error();
    if (auto ok = need_apart(to, from.pages); !ok) return ok;
    return gather_decode(*from.view, *places, *view, from.scales);
  });
}

lathe_status lathe_requantize(const lathe_pool_view* from, const lathe_tensor* from_slots,
                              const lathe_pool_view* to, const lathe_tensor* to_slots,
                              lathe_requantize_report* report) {
  return guard([&]() -> Result<void> {
    PoolRef src;
    PoolRef dst;
    if (auto ok = src.take(from, "from"); !ok) return ok;
    if (auto ok = dst.take(to, "to"); !ok) return ok;
    const auto src_places = take_slots(from_slots, "from_slots");
    if (!src_places) return src_places.error();
    const auto dst_places = take_slots(to_slots, "to_slots");
    if (!dst_places) return dst_places.error();
    if (auto ok = need_apart(dst.pages, src.pages); !ok) return ok;
    if (report != nullptr) {
      if (const auto ok = known_size(&report->size, sizeof *report, "report"); !ok) {
        return ok.error();
      }
    }
    const auto done =
        requantize(*src.view, *src_places, *dst.view, *dst_places, src.scales, dst.scales);
    if (!done) return done.error();
    if (report == nullptr) return {};
    return write_struct<lathe_requantize_report>({.size = 0,
                                                  .worst_abs_error = done->worst_abs_error,
                                                  .worst_slot = done->worst_slot.value,
                                                  .saturated = done->saturated},
                                                 report, "report");
  });
}

lathe_status lathe_copy_pages(const lathe_pool_view* from, const lathe_tensor* from_pages,
                              const lathe_pool_view* to, const lathe_tensor* to_pages) {
  return copy(from, from_pages, to, to_pages, {"from_pages", "to_pages"}, page_list,
              [](const auto&... all) { return copy_pages(all...); });
}

lathe_status lathe_copy_slots(const lathe_pool_view* from, const lathe_tensor* from_slots,
                              const lathe_pool_view* to, const lathe_tensor* to_slots) {
  return copy(from, from_slots, to, to_slots, {"from_slots", "to_slots"}, slot_list,
              [](const auto&... all) { return copy_slots(all...); });
}
