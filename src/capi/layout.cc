// The C interface's layouts.
#include <fmt/format.h>

#include "capi/handles.h"
#include "capi/status.h"
#include "capi/tensors.h"

using namespace lathe;
using namespace lathe::capi;

static_assert(LATHE_PART_NOPE == static_cast<int>(PartRole::nope) &&
              LATHE_PART_ROPE == static_cast<int>(PartRole::rope) &&
              LATHE_PART_KEY == static_cast<int>(PartRole::key) &&
              LATHE_PART_VALUE == static_cast<int>(PartRole::value) &&
              LATHE_PART_SCALE == static_cast<int>(PartRole::scale) &&
              LATHE_PART_PAD == static_cast<int>(PartRole::pad));

namespace {

std::string roles_of(const CacheLayout& layout) {
  std::string out;
  for (int i = 0; i < layout.part_count(); ++i) {
    out += fmt::format("{}{} ({})", i == 0 ? "" : ", ", name(layout.part(i).role),
                       static_cast<int>(layout.part(i).role));
  }
  return out;
}

}  // namespace

lathe_status lathe_layout_parse(const char* text, lathe_layout** layout) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all({{text, "text"}, {layout, "layout"}}); !ok) return ok;
    const auto parsed = CacheLayout::parse(text);
    if (!parsed) return parsed.error();
    *layout = new lathe_layout(*parsed);
    return {};
  });
}

void lathe_layout_free(lathe_layout* layout) { delete layout; }

const char* lathe_layout_text(const lathe_layout* layout) {
  return layout == nullptr ? nullptr : layout->text.c_str();
}

uint64_t lathe_layout_hash(const lathe_layout* layout) {
  return layout == nullptr ? 0 : layout->value.hash();
}

int64_t lathe_layout_bytes_per_token(const lathe_layout* layout) {
  return layout == nullptr ? 0 : layout->value.bytes_per_token();
}

int64_t lathe_layout_row_elems(const lathe_layout* layout) {
  return layout == nullptr ? 0 : layout->value.row_elems();
}

lathe_status lathe_layout_page_stride(const lathe_layout* layout, int64_t page_size,
                                      int64_t* bytes) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all({{layout, "layout"}, {bytes, "bytes"}}); !ok) return ok;
    const auto tokens = page_size_of(page_size, "page_size");
    if (!tokens) return tokens.error();
    *bytes = layout->value.page_stride(*tokens);
    return {};
  });
}

int32_t lathe_layout_part_count(const lathe_layout* layout) {
  return layout == nullptr ? 0 : layout->value.part_count();
}

lathe_status lathe_layout_part(const lathe_layout* layout, int32_t index, lathe_part* part) {
  return guard([&]() -> Result<void> {
    if (auto ok = need(layout, "layout"); !ok) return ok;
    const int count = layout->value.part_count();
    if (index < 0 || index >= count) {
      return Error{ErrorCode::out_of_range, "index", fmt::format("0 to {}", count - 1),
                   fmt::format("{}", index), ""};
    }
    const Part& p = layout->value.part(index);
    return write_struct<lathe_part>({.size = 0,
                                     .role = static_cast<lathe_part_role>(p.role),
                                     .elems = p.elems,
                                     .plane = p.plane,
                                     .offset = p.offset,
                                     .dtype = name(p.dtype).data()},
                                    part, "part");
  });
}

lathe_status lathe_layout_part_offset(const lathe_layout* layout, lathe_part_role role,
                                      int64_t page_size, int64_t index, int64_t* bytes) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all({{layout, "layout"}, {bytes, "bytes"}}); !ok) return ok;
    const auto tokens = page_size_of(page_size, "page_size");
    if (!tokens) return tokens.error();
    const int number = static_cast<int>(role);
    const Part* part = number < 0 || number >= static_cast<int>(enum_count<PartRole>)
                           ? nullptr
                           : layout->value.find(static_cast<PartRole>(number));
    if (part == nullptr) {
      return Error{ErrorCode::invalid_argument, "role",
                   fmt::format("one of {}'s: {}", layout->value.name(), roles_of(layout->value)),
                   fmt::format("{}", number), ""};
    }
    if (index < 0 || index >= *tokens) {
      return Error{ErrorCode::out_of_range, "index", fmt::format("0 to {}", *tokens - 1),
                   fmt::format("{}", index), "it counts tokens within one page"};
    }
    *bytes = layout->value.offset_of(*part, *tokens, static_cast<std::int32_t>(index));
    return {};
  });
}
