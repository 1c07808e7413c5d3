#include "tools/eval/eval_picture.h"

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
constexpr int kNats = 220;  // width of the panel of likelihoods
constexpr int kMargin = 70;
constexpr std::array<const char*, 4> kColors = {"#1f6feb", "#d1600b", "#2da44e", "#8250df"};

std::string label(const PlanRow& r, bool first) {
  std::string out = fmt::format("{}  {} \u2192 {}", r.layout, r.prefill, r.decode);
  if (first) out += "  (plain, one shot)";
  return out;
}

}  // namespace

std::string plans_picture(const std::string& title, const std::vector<PlanRow>& rows) {
  // The accuracy axis begins at a round tenth below the lowest interval.
  double low = 1;
  // The axis of differences in nats begins at zero or below.
  double least = 0;
  double most = 1e-9;
  for (const PlanRow& r : rows) {
    least = std::min(least, r.score_difference.interval.low);
    most = std::max(most, r.score_difference.interval.high);
    for (const TaskFigures& t : r.tasks) low = std::min(low, t.interval().low);
  }
  low = std::max(0.0, std::floor(low * 20) / 20);
  const auto x_of = [&](double share) {
    return kLabel + kScale * (share - low) / std::max(1e-9, 1 - low);
  };
  const bool scored = rows.front().score.has_value();
  const int nats = kLabel + kScale + kGap;
  const int width = (scored ? nats + kNats : kLabel + kScale) + kMargin;
  const auto nats_at = [&](double difference) {
    return nats + kNats * (difference - least) / (most - least);
  };
  const int height = kTop + kRow * static_cast<int>(rows.size()) + 24;

  std::string out;
  const auto put = [&](fmt::string_view format, const auto&... args) {
    out += fmt::vformat(format, fmt::make_format_args(args...));
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
  put("<text x=\"{}\" y=\"{}\" fill=\"#57606a\">accuracy, 95 % interval</text>\n", kLabel,
      kTop - 26);
  const int bottom = kTop + kRow * static_cast<int>(rows.size());
  for (int i = 0; i <= 5; ++i) {
    const double share = low + (1 - low) * i / 5;
    put("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#d8dee4\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\" fill=\"#57606a\">{4:.0f} %</text>\n",
        x_of(share), kTop - 4, bottom, kTop - 8, 100 * share);
  }
  if (scored) {
    put("<text x=\"{0}\" y=\"{1}\" fill=\"#57606a\">nats more than plain, 95 % interval</text>\n"
        "<line x1=\"{2:.1f}\" y1=\"{3}\" x2=\"{2:.1f}\" y2=\"{4}\" stroke=\"#d8dee4\"/>"
        "<text x=\"{2:.1f}\" y=\"{5}\" text-anchor=\"middle\" fill=\"#57606a\">0</text>\n",
        nats, kTop - 26, nats_at(0), kTop - 4, bottom, kTop - 8);
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
      const double at =
          y + 4 * (static_cast<double>(i) - (static_cast<double>(row.tasks.size()) - 1) / 2);
      const Interval ci = t.interval();
      put("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
          "stroke-opacity=\"0.45\" stroke-width=\"2\"/>"
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n",
          x_of(ci.low), at, x_of(ci.high), at, kColors[i % kColors.size()], x_of(t.accuracy()), at,
          kColors[i % kColors.size()]);
    }
    if (!scored) continue;
    const ScoreDifference& d = row.score_difference;
    put("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#8c959f\" "
        "stroke-width=\"4\"/>"
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#1b1f24\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#1b1f24\">{:+.4f}</text>\n",
        nats_at(d.interval.low), y, nats_at(d.interval.high), y, nats_at(d.mean), y,
        nats_at(d.interval.high) + 6, y + 4, d.mean);
  }
  return out + "</svg>\n";
}

}  // namespace lathe
