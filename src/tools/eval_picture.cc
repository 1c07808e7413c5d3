#include "tools/eval_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace lathe {
namespace {

constexpr int kRow = 20;
constexpr int kTop = 76;
constexpr int kLabel = 320;  // width of the plans' names
constexpr int kScale = 340;  // width of the accuracy panel
constexpr int kGap = 40;
constexpr int kBars = 220;  // width of the tokens/s panel
constexpr int kMargin = 70;
constexpr std::array<const char*, 3> kColors = {"#1f6feb", "#d1600b", "#2da44e"};

std::string label(const PlanRow& r, bool first) {
  std::string out = fmt::format("{}  {} \u2192 {}", r.layout, r.prefill, r.decode);
  if (first) out += "  (plain, one shot)";
  return out;
}

}  // namespace

std::string plans_picture(const std::string& title, const std::vector<PlanRow>& rows) {
  // The accuracy axis begins at a round tenth below the lowest interval.
  double low = 1;
  double fastest = 0;
  for (const PlanRow& r : rows) {
    fastest = std::max(fastest, r.tokens_per_second());
    for (const TaskFigures& t : r.tasks) low = std::min(low, t.interval().low);
  }
  low = std::max(0.0, std::floor(low * 20) / 20);
  const auto x_of = [&](double share) {
    return kLabel + kScale * (share - low) / std::max(1e-9, 1 - low);
  };
  const int bars = kLabel + kScale + kGap;
  const int width = bars + kBars + kMargin;
  const int height = kTop + kRow * static_cast<int>(rows.size()) + 24;

  std::string out;
  const auto put = [&](fmt::string_view format, const auto&... args) {
    fmt::format_to(std::back_inserter(out), fmt::runtime(format), args...);
  };
  put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\" fill=\"#1b1f24\">{2}</text>\n",
      width, height, title);
  int x = 12;
  for (std::size_t i = 0; i < rows.front().tasks.size(); ++i) {
    put("<circle cx=\"{}\" cy=\"46\" r=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"50\" "
        "fill=\"#1b1f24\">{}</text>\n",
        x + 4, kColors[i % kColors.size()], x + 13, name(rows.front().tasks[i].kind));
    x += 100;
  }
  put("<text x=\"{}\" y=\"{}\" fill=\"#57606a\">accuracy, 95 % interval</text>\n"
      "<text x=\"{}\" y=\"{}\" fill=\"#57606a\">output tokens/s</text>\n",
      kLabel, kTop - 26, bars, kTop - 26);
  const int bottom = kTop + kRow * static_cast<int>(rows.size());
  for (int i = 0; i <= 5; ++i) {
    const double share = low + (1 - low) * i / 5;
    put("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#d8dee4\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\" fill=\"#57606a\">{4:.0f} %</text>\n",
        x_of(share), kTop - 4, bottom, kTop - 8, 100 * share);
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const PlanRow& row = rows[r];
    const double y = kTop + kRow * (static_cast<double>(r) + 0.5);
    std::string text = label(row, r == 0);
    // Rows that repeat the plain pair differ by their chunks.
    if (r > 0 && row.layout == rows[0].layout && row.prefill == rows[0].prefill &&
        row.decode == rows[0].decode) {
      text += fmt::format("  (chunks of {})", row.chunk);
    }
    put("<text x=\"12\" y=\"{:.1f}\" fill=\"#1b1f24\">{}</text>\n", y + 4, text);
    for (std::size_t i = 0; i < row.tasks.size(); ++i) {
      const TaskFigures& t = row.tasks[i];
      const double at = y + 4.5 * (static_cast<double>(i) - 1);
      const Interval ci = t.interval();
      put("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
          "stroke-opacity=\"0.45\" stroke-width=\"2\"/>"
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n",
          x_of(ci.low), at, x_of(ci.high), at, kColors[i % kColors.size()], x_of(t.accuracy()), at,
          kColors[i % kColors.size()]);
    }
    const double rate = row.tokens_per_second();
    const double length = kBars * rate / std::max(fastest, 1e-9);
    put("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"11\" fill=\"#8c959f\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#1b1f24\">{:.0f}</text>\n",
        bars, y - 5.5, length, bars + length + 5, y + 4, rate);
  }
  return out + "</svg>\n";
}

}  // namespace lathe
