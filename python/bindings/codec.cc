// encode, decode, gather_decode, requantize and copies on the caller's arrays.
#include "layout/codec/codec.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "bindings.h"
#include "errors.h"
#include "layout/pages/copy_records.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace lathe::python {
namespace {

// The codecs' results are undefined if input and output share bytes.
void need_apart(const Array& to, const Array& from) {
  if (to.ref().overlaps(from.ref())) {
    to.refuse(fmt::format("memory apart from {}", from.argument()), "memory that they share");
  }
}

void encode(nb::handle rows, nb::handle slots, nb::handle pool, const CacheLayout& layout,
            std::int32_t page_size, float key_scale, float value_scale, const std::string& path) {
  const Array rows_array("rows", rows);
  const Array pool_array("pool", pool, true);
  rows_array.need_rank(2, "[rows, row_elems]");
  const RowsView rows_in = rows_view(rows_array);
  const PoolView to = pool_view(pool_array, layout, page_size);
  const std::vector<Slot> places = slot_list(Array("slots", slots));
  need_apart(pool_array, rows_array);
  const auto codec = enum_arg<CodecPath>("path", path);

  const auto done = [&] {
    const Unlocked unlocked;
    return encode_rows(rows_in, places, to, {key_scale, value_scale}, codec);
  }();
  value_or_raise(done);
}

// A numpy array [count, row_elems] for decoded rows, and its view. numpy has no bfloat16, so uint16
// holds its bits.
struct Rows {
  nb::object array;
  MutableRowsView view;

  Rows(std::int64_t count, const CacheLayout& layout, const std::string& dtype) {
    if (dtype != "bf16" && dtype != "f32") {
      raise({ErrorCode::invalid_argument, "dtype", "bf16 or f32", '"' + dtype + '"', ""});
    }
    array = nb::module_::import_("numpy").attr("empty")(nb::make_tuple(count, layout.row_elems()),
                                                        dtype == "f32" ? "float32" : "uint16");
    view = mutable_rows_view(Array("out", array, true));
  }
};

// count: an integer, or None for all slots from `first` on.
nb::object decode(nb::handle pool, const CacheLayout& layout, std::int32_t first, nb::handle count,
                  std::int32_t page_size, const std::string& dtype, float key_scale,
                  float value_scale, const std::string& path) {
  const Array pool_array("pool", pool);
  const ConstPoolView from = pool_view(pool_array, layout, page_size);
  const auto codec = enum_arg<CodecPath>("path", path);
  const std::int64_t wanted = count.is_none() ? 0 : nb::cast<std::int64_t>(count);
  // Checked before an array of this size is made.
  if (first < 0 || first > from.slots() - wanted) {
    raise({ErrorCode::out_of_range, "first",
           count.is_none() ? fmt::format("0 to {}", from.slots())
                           : fmt::format("{} slots within 0 to {}", wanted, from.slots() - 1),
           count.is_none() ? fmt::format("{}", first)
                           : fmt::format("{} slots from {}", wanted, first),
           "gather_decode reads slots in any order"});
  }
  const Rows out(count.is_none() ? from.slots() - first : wanted, layout, dtype);

  const auto done = [&] {
    const Unlocked unlocked;
    return decode_rows(from, Slot(first), out.view, {key_scale, value_scale}, codec);
  }();
  value_or_raise(done);
  return out.array;
}

nb::object gather(nb::handle pool, nb::handle slots, const CacheLayout& layout,
                  std::int32_t page_size, const std::string& dtype, float key_scale,
                  float value_scale, const std::string& path) {
  const Array pool_array("pool", pool);
  const ConstPoolView from = pool_view(pool_array, layout, page_size);
  const std::vector<Slot> places = slot_list(Array("slots", slots));
  const auto codec = enum_arg<CodecPath>("path", path);
  const Rows out(static_cast<std::int64_t>(places.size()), layout, dtype);

  const auto done = [&] {
    const Unlocked unlocked;
    return gather_decode(from, places, out.view, {key_scale, value_scale}, codec);
  }();
  value_or_raise(done);
  return out.array;
}

nb::tuple requantize_slots(nb::handle src, nb::handle src_slots, const CacheLayout& src_layout,
                           nb::handle dst, nb::handle dst_slots, const CacheLayout& dst_layout,
                           std::int32_t page_size, std::int32_t dst_page_size, float src_key_scale,
                           float dst_key_scale, const std::string& path) {
  const Array src_array("src", src);
  const Array dst_array("dst", dst, true);
  const ConstPoolView from = pool_view(src_array, src_layout, page_size);
  const PoolView to = pool_view(dst_array, dst_layout, dst_page_size);
  const std::vector<Slot> from_slots = slot_list(Array("src_slots", src_slots));
  const std::vector<Slot> to_slots = slot_list(Array("dst_slots", dst_slots));
  need_apart(dst_array, src_array);
  const auto codec = enum_arg<CodecPath>("path", path);

  const auto done = [&] {
    const Unlocked unlocked;
    return requantize(from, from_slots, to, to_slots, {.key = src_key_scale},
                      {.key = dst_key_scale}, codec);
  }();
  const RequantReport report = value_or_raise(done);
  return nb::make_tuple(report.worst_abs_error, report.worst_slot.value, report.saturated);
}

// copy_pages and copy_slots. The lists are read by list_of, the bytes copied by copy_all.
template <class ListOf, class Copy>
void copy(nb::handle src, nb::handle src_list, nb::handle dst, nb::handle dst_list,
          const CacheLayout& layout, std::int32_t page_size, std::int32_t dst_page_size,
          CopyNames names, ListOf list_of, Copy copy_all) {
  const Array src_array("src", src);
  const Array dst_array("dst", dst, true);
  const ConstPoolView from = pool_view(src_array, layout, page_size);
  const PoolView to = pool_view(dst_array, layout, dst_page_size);
  const auto sources = list_of(Array(std::string(names.src), src_list));
  const auto targets = list_of(Array(std::string(names.dst), dst_list));
  if (!one_pool(from, to)) need_apart(dst_array, src_array);
  const auto done = [&] {
    const Unlocked unlocked;
    return copy_all(from, sources, to, targets, names);
  }();
  value_or_raise(done);
}

void copy_whole_pages(nb::handle src, nb::handle src_pages, nb::handle dst, nb::handle dst_pages,
                      const CacheLayout& layout, std::int32_t page_size) {
  copy(src, src_pages, dst, dst_pages, layout, page_size, page_size,
       {"src_pages", "dst_pages", "dst"}, page_list,
       [](const auto&... all) { return copy_pages(all...); });
}

void copy_tokens(nb::handle src, nb::handle src_slots, nb::handle dst, nb::handle dst_slots,
                 const CacheLayout& layout, std::int32_t page_size, std::int32_t dst_page_size) {
  copy(src, src_slots, dst, dst_slots, layout, page_size, dst_page_size,
       {"src_slots", "dst_slots", "dst"}, slot_list,
       [](const auto&... all) { return copy_slots(all...); });
}

}  // namespace

void bind_codec(nb::module_& m) {
  // None is accepted here in place of an array, so that the error below can name the argument.
  using A = nb::arg;
  m.def("encode", &encode, A("rows").none(), A("slots").none(), A("pool").none(), A("layout"),
        A("page_size"), A("key_scale"), A("value_scale"), A("path"));
  m.def("decode", &decode, A("pool").none(), A("layout"), A("first"), A("count").none(),
        A("page_size"), A("dtype"), A("key_scale"), A("value_scale"), A("path"));
  m.def("gather_decode", &gather, A("pool").none(), A("slots").none(), A("layout"), A("page_size"),
        A("dtype"), A("key_scale"), A("value_scale"), A("path"));
  m.def("requantize", &requantize_slots, A("src").none(), A("src_slots").none(), A("src_layout"),
        A("dst").none(), A("dst_slots").none(), A("dst_layout"), A("page_size"), A("dst_page_size"),
        A("src_key_scale"), A("dst_key_scale"), A("path"));
  m.def("copy_pages", &copy_whole_pages, A("src").none(), A("src_pages").none(), A("dst").none(),
        A("dst_pages").none(), A("layout"), A("page_size"));
  m.def("copy_slots", &copy_tokens, A("src").none(), A("src_slots").none(), A("dst").none(),
        A("dst_slots").none(), A("layout"), A("page_size"), A("dst_page_size"));
}

}  // namespace lathe::python
