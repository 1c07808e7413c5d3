#include "tools/bench/server/serve_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lathe {
namespace {

constexpr double kPanelWidth = 340;  // of a panel's axes
constexpr double kPanelHeight = 150;
constexpr double kPanelLeft = 64;  // of the first panel; room for its numbers
constexpr double kPanelTop = 96;
constexpr double kNextColumn = kPanelWidth + 100;
constexpr double kNextRow = kPanelHeight + 76;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return out;
}

// The step of some four ticks up to `most`: 1, 2 or 5 times a power of ten.
double tick_step(double most) {
  const double power = std::pow(10, std::floor(std::log10(most / 4)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (most / (factor * power) <= 5) return factor * power;
  }
  return 10 * power;
}

class Panel {
 public:
  Panel(int column, int row, double most_x, double most_y)
      : x_(kPanelLeft + column * kNextColumn),
        y_(kPanelTop + row * kNextRow),
        most_x_(std::max(most_x, 1e-9)),
        most_y_(std::max(most_y, 1e-9)) {}

  double x(double value) const { return x_ + kPanelWidth * std::min(1.0, value / most_x_); }
  double y(double value) const { return y_ + kPanelHeight * (1 - std::min(1.0, value / most_y_)); }

  void axes(const std::string& title, const char* x_label, std::string& out) const {
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-weight=\"bold\" fill=\"#1b1f24\">{}</text>\n", x_,
        y_ - 12, title);
    const double step = tick_step(most_y_);
    for (double v = 0; v <= most_y_ * 1.0001; v += step) {
      out += fmt::format(
          "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"#d8dee4\"/>"
          "<text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\" fill=\"#57606a\">{5:g}</text>\n",
          x_, y(v), x_ + kPanelWidth, x_ - 6, y(v) + 4, v);
    }
    const double x_step = tick_step(most_x_);
    for (double v = 0; v <= most_x_ * 1.0001; v += x_step) {
      out += fmt::format(
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#57606a\">{:g}</text>\n",
          x(v), y_ + kPanelHeight + 16, v);
    }
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#57606a\">{}</text>\n",
        x_ + kPanelWidth / 2, y_ + kPanelHeight + 32, x_label);
  }

 private:
  double x_, y_, most_x_, most_y_;
};

void draw_times(int column, int row, const char* title, const TimeSpread& spread,
                std::string& out) {
  const double most = spread.sorted.empty() ? 1 : spread.p99 * 1.1;
  const Panel panel(column, row, 100, most);
  panel.axes(fmt::format("{}, ms", title), "percent of them take at most", out);
  if (spread.sorted.empty()) return;
  const std::size_t n = spread.sorted.size();
  const std::size_t points = std::min<std::size_t>(n, 200);
  std::string line;
  for (std::size_t i = 0; i < points; ++i) {
    const std::size_t at = points == 1 ? 0 : i * (n - 1) / (points - 1);
    const double percent =
        n == 1 ? 100 : 100.0 * static_cast<double>(at) / static_cast<double>(n - 1);
    line += fmt::format("{:.1f},{:.1f} ", panel.x(percent), panel.y(spread.sorted[at]));
  }
  out += fmt::format(
      "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"2\"/>\n", line);
  for (const auto& [percent, value] :
       {std::pair{50.0, spread.p50}, std::pair{90.0, spread.p90}, std::pair{99.0, spread.p99}}) {
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"#d1600b\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#1b1f24\">p{:g} "
        "{:.4g}</text>\n",
        panel.x(percent), panel.y(value), panel.x(percent) - 7, panel.y(value) - 5, percent, value);
  }
}

void draw_rate(int column, int row, const ServeFigures& f, std::string& out) {
  const auto& all = f.tokens_in_second;
  // At most 85 bars; each shows the mean of its seconds.
  const std::size_t each = (all.size() + 84) / 85;
  std::vector<double> bars;
  for (std::size_t at = 0; at < all.size(); at += each) {
    double sum = 0, seconds = 0;
    for (std::size_t i = at; i < std::min(at + each, all.size()); ++i) {
      sum += static_cast<double>(all[i]);
      seconds += std::min(1.0, std::max(1e-3, f.duration - static_cast<double>(i)));
    }
    bars.push_back(sum / seconds);
  }
  const double span = std::max(f.duration, 1e-3);
  const Panel panel(column, row, span, *std::max_element(bars.begin(), bars.end()) * 1.1);
  panel.axes("tokens of answers, a second", "seconds since the start", out);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const auto from = static_cast<double>(i * each);
    const double to = std::min(span, static_cast<double>((i + 1) * each));
    const double width = std::max(1.0, panel.x(to) - panel.x(from) - 1);
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#2da44e\"/>\n",
        panel.x(from), panel.y(bars[i]), width, panel.y(0) - panel.y(bars[i]));
  }
}

}  // namespace

std::string serve_picture(const std::string& title, const ServeFigures& f) {
  const int width = static_cast<int>(kPanelLeft + kNextColumn + kPanelWidth + 24);
  const int height = static_cast<int>(kPanelTop + kNextRow + kPanelHeight + 48);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\" fill=\"#1b1f24\">{2}</text>\n",
      width, height, escaped(title));
  out += fmt::format(
      "<text x=\"12\" y=\"46\" fill=\"#57606a\">{} requests complete, {} failed, {:.2f} a second; "
      "tokens a second: in {:.4g}, out {:.4g}</text>\n",
      f.completed, f.failed, f.per_second(f.completed), f.per_second(f.input_tokens),
      f.per_second(f.output_tokens));
  draw_times(0, 0, "to the first token", f.ttft, out);
  draw_times(1, 0, "between parts", f.itl, out);
  draw_times(0, 1, "to the end", f.e2el, out);
  draw_rate(1, 1, f, out);
  return out + "</svg>\n";
}

}  // namespace lathe
