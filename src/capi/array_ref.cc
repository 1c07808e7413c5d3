#include "capi/array_ref.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

namespace lathe {
namespace {

// Codes of another format are not a pool's bytes: no layout holds e5m2.
bool is_byte(ArrayType t) { return t.is(ArrayCode::unsigned_int, 8) || t.is(ArrayCode::e4m3fn, 8); }

std::optional<DType> number_type(ArrayType t, bool codes) {
  if (t.is(ArrayCode::floating, 32)) return DType::f32;
  if (t.is(ArrayCode::bfloat, 16) || t.is(ArrayCode::unsigned_int, 16)) return DType::bf16;
  if (codes && (t.is(ArrayCode::e4m3fn, 8) || t.is(ArrayCode::unsigned_int, 8))) return DType::e4m3;
  return std::nullopt;
}

std::int64_t count_of(const ArrayRef& a) {
  std::int64_t count = 1;
  for (const std::int64_t n : a.shape) count *= n;
  return count;
}

// Calls visit(place, element number) for every element in row-major order, until it gives an error.
template <class Visit>
Result<void> for_each_element(const ArrayRef& a, Visit visit) {
  const std::int64_t count = count_of(a);
  std::vector<std::int64_t> place(a.rank(), 0);
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < a.rank(); ++d) at += place[d] * a.strides[d];
    if (Result<void> ok = visit(place, at); !ok) return ok;
    for (std::size_t d = a.rank(); d-- > 0;) {
      if (++place[d] < a.shape[d]) break;
      place[d] = 0;
    }
  }
  return {};
}

template <class T>
T load(const ArrayRef& a, std::int64_t element) {
  T x;
  std::memcpy(&x, a.data + element * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return x;
}

template <class T>
Result<std::span<const T>> dense_span(const ArrayRef& a, ArrayCode code, const char* type,
                                      std::size_t rank, const char* axes) {
  if (!a.type.is(code, 8 * sizeof(T))) {
    return a.wrong(fmt::format("{} on a GPU", type), a.type.name());
  }
  if (auto ok = a.need_rank(rank, axes); !ok) return ok.error();
  if (auto ok = a.need_dense(0); !ok) return ok.error();
  const auto count = static_cast<std::size_t>(count_of(a));
  if (count > 0 && a.data == nullptr) return a.wrong("an address", "null");
  if (reinterpret_cast<std::uintptr_t>(a.data) % alignof(T) != 0) {
    return a.wrong(fmt::format("an address that is a multiple of {}", alignof(T)),
                   fmt::format("{}", static_cast<const void*>(a.data)));
  }
  return std::span(reinterpret_cast<const T*>(a.data), count);
}

}  // namespace

std::string ArrayType::name() const {
  const char* stem = nullptr;
  switch (static_cast<ArrayCode>(code)) {
    case ArrayCode::signed_int:
      stem = "int";
      break;
    case ArrayCode::unsigned_int:
      stem = "uint";
      break;
    case ArrayCode::floating:
      stem = "float";
      break;
    case ArrayCode::bfloat:
      stem = "bfloat";
      break;
    case ArrayCode::boolean:
      return "bool";
    case ArrayCode::e4m3fn:
      return "float8_e4m3fn";
    case ArrayCode::e5m2:
      return "float8_e5m2";
  }
  if (stem == nullptr) return fmt::format("DLPack type {} of {} bits", code, bits);
  return fmt::format("{}{}", stem, bits);
}

std::string ArrayRef::describe() const {
  return fmt::format("a {} array of shape ({}{})", type.name(), fmt::join(shape, ", "),
                     rank() == 1 ? "," : "");
}

Error ArrayRef::wrong(std::string wanted, std::string offered, std::string hint) const {
  return {ErrorCode::invalid_argument, argument, std::move(wanted), std::move(offered),
          std::move(hint)};
}

Result<void> ArrayRef::need_rank(std::size_t wanted, const char* axes) const {
  if (rank() == wanted) return {};
  return wrong(fmt::format("the shape {}", axes), describe());
}

Result<void> ArrayRef::need_dense(std::size_t first) const {
  // The strides of an empty array mean nothing.
  for (const std::int64_t n : shape) {
    if (n == 0) return {};
  }
  std::int64_t step = 1;
  for (std::size_t d = rank(); d-- > first;) {
    if (shape[d] > 1 && strides[d] != step) {
      return wrong(fmt::format("a stride of {} elements on axis {}", step, d),
                   fmt::format("{}", strides[d]), "make it contiguous within a row");
    }
    step *= shape[d];
  }
  return {};
}

bool ArrayRef::overlaps(const ArrayRef& other) const {
  const auto extent = [](const ArrayRef& a) {
    std::int64_t low = 0;
    std::int64_t high = 1;
    const std::int64_t bytes = (a.type.bits + 7) / 8;
    for (std::size_t d = 0; d < a.rank(); ++d) {
      if (a.shape[d] == 0) return std::pair{a.data, a.data};
      const std::int64_t reach = (a.shape[d] - 1) * a.strides[d];
      (reach < 0 ? low : high) += reach;
    }
    return std::pair{a.data + low * bytes, a.data + high * bytes};
  };
  const auto [a, a_end] = extent(*this);
  const auto [b, b_end] = extent(other);
  return a < b_end && b < a_end;
}

Result<MutableRowsView> mutable_rows_view(const ArrayRef& array) {
  const auto view = rows_view(array);
  if (!view) return view.error();
  return MutableRowsView{array.data, view->dtype, view->rows, view->cols, view->row_stride};
}

Result<RowsView> rows_view(const ArrayRef& array, bool codes) {
  const std::optional<DType> dtype = number_type(array.type, codes);
  if (!dtype) {
    return array.wrong(codes
                           ? "float32, bfloat16, uint16 (bits of bfloat16), float8_e4m3fn or uint8 "
                             "(its codes)"
                           : "float32, bfloat16 or uint16 (bits of bfloat16)",
                       array.type.name());
  }
  if (array.rank() == 0) return array.wrong("the shape [rows, row_elems]", array.describe());
  if (Result<void> ok = array.need_dense(1); !ok) return ok.error();
  RowsView view;
  view.data = array.data;
  view.dtype = *dtype;
  view.rows = array.shape[0];
  view.cols = 1;
  for (const std::int64_t n : array.shape.subspan(1)) view.cols *= n;
  // The stride of an axis with one element means nothing, and exporters put anything there.
  view.row_stride = view.rows > 1 ? array.strides[0] : view.cols;
  return view;
}

Result<PoolView> pool_view(const ArrayRef& array, const CacheLayout& layout,
                           std::int32_t page_size) {
  if (Result<void> ok = check_page_size(page_size); !ok) return ok.error();
  if (!is_byte(array.type)) {
    return array.wrong("uint8 or float8_e4m3fn, the bytes of pages", array.type.name());
  }
  const std::int64_t least = layout.page_stride(page_size);
  const std::string page =
      fmt::format("{} bytes, a page of {} tokens of {}", least, page_size, layout.name());
  if (array.rank() == 1) {
    if (Result<void> ok = array.need_dense(0); !ok) return ok.error();
    if (array.shape[0] % least != 0) {
      return array.wrong("a multiple of " + page, fmt::format("{} bytes", array.shape[0]));
    }
    return PoolView{array.data, layout, page_size, array.shape[0] / least};
  }
  if (array.rank() != 2) {
    return array.wrong("the shape [bytes] or [pages, bytes of a page]", array.describe());
  }
  if (Result<void> ok = array.need_dense(1); !ok) return ok.error();
  const std::int64_t pages = array.shape[0];
  const std::int64_t stride = pages > 1 ? array.strides[0] : std::max(least, array.shape[1]);
  if (pages > 0 && (array.shape[1] < least || stride < least)) {
    return array.wrong("rows of at least " + page,
                       fmt::format("rows of {} bytes with a stride of {}", array.shape[1], stride));
  }
  // Pages of another layout or size: reading them as this one's would give garbage. An owner of
  // longer rows passes a view of their pages.
  if (pages > 0 && array.shape[1] > least && stride == array.shape[1]) {
    return array.wrong("rows of " + page, fmt::format("rows of {} bytes", array.shape[1]),
                       fmt::format("pages of this layout in longer rows: pool[:, :{}]", least));
  }
  return PoolView{array.data, layout, page_size, pages, stride};
}

Result<std::vector<std::int32_t>> int32_list(const ArrayRef& array, std::size_t rank,
                                             const char* axes) {
  const bool narrow = array.type.is(ArrayCode::signed_int, 32);
  if (!narrow && !array.type.is(ArrayCode::signed_int, 64)) {
    return array.wrong("int32 or int64", array.type.name());
  }
  if (Result<void> ok = array.need_rank(rank, axes); !ok) return ok.error();
  std::vector<std::int32_t> out;
  out.reserve(static_cast<std::size_t>(count_of(array)));
  const auto take = [&](const std::vector<std::int64_t>& place, std::int64_t at) -> Result<void> {
    const std::int64_t x = narrow ? load<std::int32_t>(array, at) : load<std::int64_t>(array, at);
    if (x < std::numeric_limits<std::int32_t>::min() ||
        x > std::numeric_limits<std::int32_t>::max()) {
      return Error{ErrorCode::out_of_range,
                   fmt::format("{}[{}]", array.argument, fmt::join(place, ", ")),
                   "a number that int32 holds", fmt::format("{}", x), ""};
    }
    out.push_back(static_cast<std::int32_t>(x));
    return {};
  };
  if (Result<void> ok = for_each_element(array, take); !ok) return ok.error();
  return out;
}

namespace {

template <class Index>
Result<std::vector<Index>> index_list(const ArrayRef& array, const char* axes) {
  const auto list = int32_list(array, 1, axes);
  if (!list) return list.error();
  return std::vector<Index>(list->begin(), list->end());
}

}  // namespace

Result<std::vector<Slot>> slot_list(const ArrayRef& array) {
  return index_list<Slot>(array, "[rows]");
}

Result<std::vector<PageId>> page_list(const ArrayRef& array) {
  return index_list<PageId>(array, "[pages]");
}

Result<std::vector<float>> float_list(const ArrayRef& array, std::size_t rank, const char* axes) {
  if (!array.type.is(ArrayCode::floating, 32)) return array.wrong("float32", array.type.name());
  if (Result<void> ok = array.need_rank(rank, axes); !ok) return ok.error();
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(count_of(array)));
  const auto take = [&](const std::vector<std::int64_t>&, std::int64_t at) -> Result<void> {
    out.push_back(load<float>(array, at));
    return {};
  };
  if (Result<void> ok = for_each_element(array, take); !ok) return ok.error();
  return out;
}

Result<std::span<const std::int32_t>> int32_span(const ArrayRef& array, std::size_t rank,
                                                 const char* axes) {
  return dense_span<std::int32_t>(array, ArrayCode::signed_int, "int32", rank, axes);
}

Result<std::span<const float>> float_span(const ArrayRef& array, std::size_t rank,
                                          const char* axes) {
  return dense_span<float>(array, ArrayCode::floating, "float32", rank, axes);
}

Result<std::span<std::byte>> byte_span(const ArrayRef& array) {
  const auto bytes =
      dense_span<std::uint8_t>(array, ArrayCode::unsigned_int, "uint8", 1, "[bytes]");
  if (!bytes) return bytes.error();
  return std::span(array.data, bytes->size());
}

}  // namespace lathe
