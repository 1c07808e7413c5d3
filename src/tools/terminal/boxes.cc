#include "tools/terminal/boxes.h"

#include <fmt/format.h>

#include <algorithm>

namespace lathe {
namespace {

// Width of a text in columns: the bytes that begin a character.
std::size_t columns(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, columns(text)), ' ');
}

}  // namespace

std::string draw_boxes(const std::vector<Box>& boxes, std::int64_t end) {
  const std::string indent(4, ' ');
  std::string offsets = indent;
  std::string top = indent;
  std::string labels = indent;
  std::string details = indent;
  std::string bottom = indent;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Box& b = boxes[i];
    const std::string at = fmt::format("{}", b.offset);
    const std::size_t width = std::max({columns(b.label), columns(b.detail), at.size()}) + 2;
    std::string line;
    for (std::size_t c = 0; c < width; ++c) line += "─";
    offsets += padded(at, width + 1);
    top += (i == 0 ? "┌" : "┬") + line;
    labels += "│ " + padded(b.label, width - 1);
    details += "│ " + padded(b.detail, width - 1);
    bottom += (i == 0 ? "└" : "┴") + line;
  }
  return fmt::format("{}{}\n{}┐\n{}│\n{}│\n{}┘\n", offsets, end, top, labels, details, bottom);
}

}  // namespace lathe
