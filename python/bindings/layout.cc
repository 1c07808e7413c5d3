// lathe.Layout: CacheLayout as an immutable Python value.
#include "layout/layout.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "bindings.h"
#include "errors.h"

namespace nb = nanobind;

namespace lathe::python {
namespace {

constexpr struct {
  const char* key;
  std::int32_t LayoutDims::*field;
} kDims[] = {
    {"nope", &LayoutDims::nope},         {"rope", &LayoutDims::rope},
    {"dim", &LayoutDims::dim},           {"kv_heads", &LayoutDims::kv_heads},
    {"head_dim", &LayoutDims::head_dim}, {"v_head_dim", &LayoutDims::v_head_dim},
};

std::int32_t page_size_arg(std::int64_t page_size) {
  // Clamped to a number that check_page_size() refuses as well.
  const auto narrow = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(page_size, std::numeric_limits<std::int32_t>::min(),
                               std::numeric_limits<std::int32_t>::max()));
  value_or_raise(check_page_size(narrow));
  return narrow;
}

nb::dict dims_of(const CacheLayout& layout) {
  nb::dict out;
  // The serialised form names exactly the dims that the kind has, even if they are 0 (rope).
  const std::string text = layout.serialize();
  for (const auto& [key, field] : kDims) {
    if (text.find(fmt::format("({}=", key)) != std::string::npos ||
        text.find(fmt::format(",{}=", key)) != std::string::npos) {
      out[key] = layout.dims().*field;
    }
  }
  return out;
}

nb::list parts_of(const CacheLayout& layout) {
  const nb::object part_type = nb::module_::import_("lathe._layouts").attr("Part");
  nb::list out;
  for (int i = 0; i < layout.part_count(); ++i) {
    const Part& p = layout.part(i);
    out.append(part_type(std::string(name(p.role)), std::string(name(p.dtype)), p.elems, p.plane,
                         p.offset));
  }
  return out;
}

std::int64_t offset_of(const CacheLayout& layout, const std::string& role, std::int64_t page_size,
                       std::int64_t index) {
  const std::int32_t tokens = page_size_arg(page_size);
  const Part* part = layout.find(enum_arg<PartRole>("role", role));
  if (part == nullptr) {
    std::string known;
    for (int i = 0; i < layout.part_count(); ++i) {
      known += fmt::format("{}{}", i == 0 ? "" : ", ", name(layout.part(i).role));
    }
    raise({ErrorCode::invalid_argument, "role",
           fmt::format("one of {}'s: {}", layout.name(), known), fmt::format("\"{}\"", role), ""});
  }
  if (index < 0 || index >= tokens) {
    raise({ErrorCode::out_of_range, "index", fmt::format("0 to {}", tokens - 1),
           fmt::format("{}", index), "it counts tokens within one page"});
  }
  return layout.offset_of(*part, tokens, static_cast<std::int32_t>(index));
}

}  // namespace

void bind_layout(nb::module_& m) {
  nb::class_<CacheLayout>(m, "Layout",
                          "How the bytes of a KV cache lie, as a value.\n\n"
                          "``Layout(\"mla_fp8_block\")`` has the default dims, "
                          "``Layout(\"mla_fp8_block(nope=256,scale=raw_f32)\")`` others. Equal by "
                          "value, hashable, picklable. Raises LatheError for a text that names no "
                          "layout.")
      .def(
          "__init__",
          [](CacheLayout* self, nb::handle text) {
            std::string s;
            if (!nb::try_cast(text, s)) {
              raise_type_error({ErrorCode::invalid_argument, "layout", "a string",
                                nb::type_name(text.type()).c_str(), ""});
            }
            new (self) CacheLayout(value_or_raise(CacheLayout::parse(s)));
          },
          nb::arg("text").none())
      .def_prop_ro(
          "name", [](const CacheLayout& l) { return std::string(l.name()); }, "the kind's name")
      .def_prop_ro("bytes_per_token", &CacheLayout::bytes_per_token,
                   "bytes of one token, padding of pages not counted")
      .def_prop_ro("row_elems", &CacheLayout::row_elems, "numbers in a token's row")
      .def_prop_ro("homogeneous", &CacheLayout::homogeneous,
                   "True where the whole row has one number format")
      .def_prop_ro(
          "scale_policy", [](const CacheLayout& l) { return std::string(name(l.scale_policy())); },
          "none, per_tensor, pow2_ceil, raw_f32 or ue8m0")
      .def_prop_ro("scale_tile", &CacheLayout::scale_tile,
                   "numbers that share a scale; 0 where the policy has no tiles")
      .def_prop_ro("dims", &dims_of, "the dims that this kind has, as a dict")
      .def_prop_ro("parts", &parts_of, "the parts of a token's record, as a list of Part")
      .def_prop_ro("hash", &CacheLayout::hash,
                   "XXH3-64 of str(layout): equal on every machine and build")
      .def(
          "page_stride",
          [](const CacheLayout& l, std::int64_t page_size) {
            return l.page_stride(page_size_arg(page_size));
          },
          nb::arg("page_size"), "Bytes of a page of page_size tokens, padding included.")
      .def("offset", &offset_of, nb::arg("role"), nb::arg("page_size"), nb::arg("index"),
           "Byte, counted from the start of its page, at which the part `role` of the token at "
           "`index` in the page begins.")
      .def("__str__", &CacheLayout::serialize)
      .def("__repr__", &CacheLayout::serialize)
      .def("__eq__",
           [](const CacheLayout& l, nb::handle other) {
             const CacheLayout* o = nullptr;
             return nb::try_cast(other, o) && o != nullptr && l == *o;
           })
      .def("__hash__",
           [](const CacheLayout& l) { return static_cast<std::int64_t>(l.hash() >> 1); })
      .def("__reduce__", [](const CacheLayout& l) {
        return nb::make_tuple(nb::type<CacheLayout>(), nb::make_tuple(l.serialize()));
      });

  m.def("layout_names", [] {
    nb::list out;
    for (const std::string_view kind : enum_names<LayoutKind>) out.append(std::string(kind));
    return out;
  });
}

}  // namespace lathe::python
