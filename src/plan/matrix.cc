#include "plan/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plan/layout_choice.h"
#include "plan/plan_json.h"

namespace lathe {
namespace {

constexpr std::string_view kGreen = "\x1b[32m";
constexpr std::string_view kRed = "\x1b[31m";
constexpr std::string_view kBold = "\x1b[1m";
constexpr std::string_view kReset = "\x1b[0m";

std::string_view mark(const MatrixCell& cell) {
  if (cell.result) return "ok";
  const auto& reasons = cell.result.error().reasons;
  return reasons.empty() ? "refused" : name(reasons.front().rule);
}

const MatrixCell* find(const std::vector<MatrixCell>& cells, LayoutKind layout, KernelKind prefill,
                       KernelKind decode) {
  for (const MatrixCell& c : cells) {
    if (c.layout == layout && c.prefill == prefill && c.decode == decode) return &c;
  }
  return nullptr;
}

}  // namespace

std::vector<MatrixCell> make_matrix(const AttentionProblem& problem, const Machine& machine,
                                    const PlanRequest& request, const Registry& registry) {
  std::vector<MatrixCell> cells;
  const LayoutChoice open = choose_layouts(problem, request);
  for (const auto& tier : open.tiers) {
    for (const CacheLayout& layout : tier) {
      for (KernelKind prefill : enum_values<KernelKind>()) {
        for (KernelKind decode : enum_values<KernelKind>()) {
          PlanRequest changed = request;
          changed.layout = layout.serialize();
          changed.prefill = std::string(name(prefill));
          changed.decode = std::string(name(decode));
          cells.push_back(
              {prefill, decode, layout.kind(), make_plan(problem, machine, changed, registry)});
        }
      }
    }
  }
  return cells;
}

std::string explain_matrix(const std::vector<MatrixCell>& cells, bool color) {
  const auto paint = [&](std::string_view c, std::string text) {
    return color ? std::string(c) + text + std::string(kReset) : text;
  };
  std::string out;
  std::vector<LayoutKind> layouts;
  for (const MatrixCell& c : cells) {
    if (std::find(layouts.begin(), layouts.end(), c.layout) == layouts.end()) {
      layouts.push_back(c.layout);
    }
  }
  for (LayoutKind layout : layouts) {
    out += paint(kBold, fmt::format("{}", name(layout))) + "\n";
    out += fmt::format("  {:<18}", "prefill \\ decode");
    for (KernelKind d : enum_values<KernelKind>()) out += fmt::format("{:<14}", name(d));
    while (out.ends_with(' ')) out.pop_back();
    out += '\n';
    for (KernelKind p : enum_values<KernelKind>()) {
      out += fmt::format("  {:<18}", name(p));
      for (KernelKind d : enum_values<KernelKind>()) {
        const MatrixCell* cell = find(cells, layout, p, d);
        out += paint(cell->result ? kGreen : kRed, fmt::format("{:<14}", mark(*cell)));
      }
      while (out.ends_with(' ')) out.pop_back();
      out += '\n';
    }
  }

  // Explains the marks, each distinct reason once.
  std::vector<std::string> seen;
  for (const MatrixCell& c : cells) {
    if (c.result || c.result.error().reasons.empty()) continue;
    const Reason& r = c.result.error().reasons.front();
    std::string line = fmt::format("{:<14}{}: wanted {}, offered {}", name(r.rule), r.subject,
                                   r.wanted, r.offered);
    if (std::find(seen.begin(), seen.end(), line) == seen.end()) seen.push_back(std::move(line));
  }
  if (!seen.empty()) out += '\n';
  for (const std::string& line : seen) out += line + "\n";
  return out;
}

nlohmann::ordered_json matrix_json(const std::vector<MatrixCell>& cells) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const MatrixCell& c : cells) {
    nlohmann::ordered_json j = {{"prefill", name(c.prefill)},
                                {"decode", name(c.decode)},
                                {"layout", name(c.layout)},
                                {"legal", c.result.ok()}};
    if (!c.result) j["reasons"] = to_json(c.result.error())["reasons"];
    out.push_back(std::move(j));
  }
  return out;
}

}  // namespace lathe
