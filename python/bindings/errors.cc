#include "errors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace nb = nanobind;

namespace lathe::python {
namespace {

// The C++ structs' members and the arguments that they come from. A prefix of a field is replaced,
// one after the other.
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kArguments = {{
    {"main.table_width", "page_table"},
    {"main.index_width", "indices"},
    {"main.", ""},
    {"extra.index_width", "extra.indices"},
    {"problem.kind", "attention"},
    {"problem.", ""},
    {"expansion.", ""},
    {"src_scales.key", "src_key_scale"},
    {"dst_scales.key", "dst_key_scale"},
    {"scales.key", "key_scale"},
    {"scales.value", "value_scale"},
    {"pool.page_size", "page_size"},
    {"pool.layout", "layout"},
    {"src.page_size", "page_size"},
    {"dst.page_size", "dst_page_size"},
    {"out.rows", "count"},
}};

std::string argument_of(std::string field) {
  if (field.starts_with("--")) {
    field.erase(0, 2);
    std::ranges::replace(field, '-', '_');
    return field;
  }
  for (const auto& [member, argument] : kArguments) {
    if (field.starts_with(member)) field = std::string(argument) + field.substr(member.size());
  }
  return field;
}

}  // namespace

void raise(const Error& error) {
  const nb::object type = nb::module_::import_("lathe._errors").attr("LatheError");
  const nb::object exception = type(std::string(name(error.code)), argument_of(error.field),
                                    error.wanted, error.offered, error.hint);
  PyErr_SetObject(type.ptr(), exception.ptr());
  throw nb::python_error();
}

void raise_type_error(const Error& error) { throw nb::type_error(error.message().c_str()); }

}  // namespace lathe::python
