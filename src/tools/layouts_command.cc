// lathe layouts: each cache layout's bytes, drawn.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "layout/layout.h"
#include "tools/flags/command.h"
#include "tools/terminal/boxes.h"

namespace lathe {
namespace {

std::string scales_text(const CacheLayout& l) {
  switch (l.scale_policy()) {
    case ScalePolicy::none:
      return "no scales";
    case ScalePolicy::per_tensor:
      return "one scale per pool";
    default:
      break;
  }
  const std::string each = fmt::format("per {} elements", l.scale_tile());
  if (l.scale_policy() == ScalePolicy::ue8m0) return "ue8m0 scale " + each;
  return fmt::format("f32 scale {}, {}", each, name(l.scale_policy()));
}

std::string part_text(const Part& p) { return fmt::format("{}[{}]", name(p.dtype), p.elems); }

// A token's record in one plane, part by part.
std::string draw_record(const CacheLayout& l, int plane) {
  std::vector<Box> boxes;
  for (int i = 0; i < l.part_count(); ++i) {
    const Part& p = l.part(i);
    if (p.plane != plane) continue;
    boxes.push_back({std::string(name(p.role)), part_text(p), p.offset});
  }
  return draw_boxes(boxes, l.plane_bytes(plane));
}

// A page: the tokens' records, plane after plane, and the padding at its end.
std::string draw_page(const CacheLayout& l, std::int32_t page_size) {
  std::vector<Box> boxes;
  for (int plane = 0; plane < l.plane_count(); ++plane) {
    const std::int64_t start = l.plane_start(page_size, plane);
    const std::int64_t record = l.plane_bytes(plane);
    boxes.push_back({"token 0", fmt::format("{} B", record), start});
    if (page_size > 2) boxes.push_back({"…", "", start + record});
    if (page_size > 1) {
      boxes.push_back({fmt::format("token {}", page_size - 1), fmt::format("{} B", record),
                       start + record * (page_size - 1)});
    }
  }
  const std::int64_t used = std::int64_t{page_size} * l.bytes_per_token();
  const std::int64_t stride = l.page_stride(page_size);
  if (stride > used) boxes.push_back({"padding", fmt::format("{} B", stride - used), used});
  return draw_boxes(boxes, stride);
}

std::string draw(const CacheLayout& l, std::int32_t page_size) {
  std::string out =
      fmt::format("{}   {} B per token, {}, {}, hash {:016x}\n", l.serialize(), l.bytes_per_token(),
                  scales_text(l), l.homogeneous() ? "homogeneous" : "mixed", l.hash());
  for (int plane = 0; plane < l.plane_count(); ++plane) {
    if (l.plane_count() > 1) {
      out += fmt::format("  a token in plane {}, {} B\n", plane, l.plane_bytes(plane));
    } else {
      out += "  a token\n";
    }
    out += draw_record(l, plane);
  }
  out += fmt::format("  a page of {} tokens, {} B\n", page_size, l.page_stride(page_size));
  return out + draw_page(l, page_size);
}

std::string table(const std::vector<CacheLayout>& layouts, std::int32_t page_size) {
  std::string out = fmt::format("{:<15}{:>9}  {:>11}  {:<12}{:<38}{}\n", "layout", "B/token",
                                fmt::format("B/page({})", page_size), "formats", "scales",
                                "parts at byte offsets");
  for (const CacheLayout& l : layouts) {
    std::string parts;
    for (int i = 0; i < l.part_count(); ++i) {
      const Part& p = l.part(i);
      parts += fmt::format("{}{} {}@{}",
                           i == 0                                    ? ""
                           : i > 0 && l.part(i - 1).plane != p.plane ? " | "
                                                                     : ", ",
                           name(p.role), part_text(p), p.offset);
    }
    out += fmt::format("{:<15}{:>9}  {:>11}  {:<12}{:<38}{}\n", l.name(), l.bytes_per_token(),
                       l.page_stride(page_size), l.homogeneous() ? "homogeneous" : "mixed",
                       scales_text(l), parts);
  }
  return out;
}

nlohmann::ordered_json layout_json(const CacheLayout& l, std::int32_t page_size) {
  nlohmann::ordered_json j = {{"name", l.name()},
                              {"layout", l.serialize()},
                              {"hash", fmt::format("{:016x}", l.hash())},
                              {"bytes_per_token", l.bytes_per_token()},
                              {"row_elems", l.row_elems()},
                              {"homogeneous", l.homogeneous()},
                              {"scale_policy", name(l.scale_policy())},
                              {"scale_tile", l.scale_tile()},
                              {"page_size", page_size},
                              {"page_stride", l.page_stride(page_size)},
                              {"parts", nlohmann::ordered_json::array()}};
  for (int i = 0; i < l.part_count(); ++i) {
    const Part& p = l.part(i);
    j["parts"].push_back({{"role", name(p.role)},
                          {"dtype", name(p.dtype)},
                          {"elems", p.elems},
                          {"plane", p.plane},
                          {"token_offset", p.offset},
                          {"token_stride", l.plane_bytes(p.plane)},
                          {"plane_start", l.plane_start(page_size, p.plane)}});
  }
  return j;
}

struct LayoutsFlags {
  std::vector<std::string> names;
  std::int32_t page_size = 64;
  bool table = false;
  bool json = false;
};

int run_layouts(const LayoutsFlags& flags) {
  std::vector<CacheLayout> layouts;
  for (const std::string& text : flags.names) {
    const auto l = CacheLayout::parse(text);
    if (!l) return refuse(l.error());
    layouts.push_back(*l);
  }
  if (layouts.empty()) {
    for (LayoutKind kind : enum_values<LayoutKind>()) layouts.emplace_back(kind);
  }
  if (flags.json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const CacheLayout& l : layouts) all.push_back(layout_json(l, flags.page_size));
    print_out(json_text(all, 2) + "\n");
    return kExitOk;
  }
  if (flags.table) {
    std::string policies = "\nscale policies\n";
    for (ScalePolicy p : enum_values<ScalePolicy>()) {
      policies += fmt::format("  {:<12}{}\n", name(p), meaning(p));
    }
    print_out(table(layouts, flags.page_size) + policies);
    return kExitOk;
  }
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    print_out((i == 0 ? "" : "\n") + draw(layouts[i], flags.page_size));
  }
  return kExitOk;
}

}  // namespace

void add_layouts_command(Command app, int& exit_code) {
  auto flags = std::make_shared<LayoutsFlags>();
  Command cmd = app.add_subcommand("layouts", "Draw the bytes of each cache layout");
  cmd.add_option(
      "layout", flags->names,
      "names, or layouts with dims: mla_fp8_block(nope=512,rope=64); all where none is given");
  cmd.add_option("--page-size", flags->page_size, "tokens per page; default 64")
      .range(1, kMaxPageSize);
  const Flag table = cmd.add_flag("--table", flags->table, "one line per layout");
  cmd.add_flag("--json", flags->json, "as data on stdout").excludes(table);
  cmd.callback([flags, &exit_code] { exit_code = run_layouts(*flags); });
}

}  // namespace lathe
