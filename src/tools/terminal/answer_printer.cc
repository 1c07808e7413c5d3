#include "tools/terminal/answer_printer.h"

#include <algorithm>
#include <string_view>

namespace lathe {
namespace {

constexpr std::string_view kDim = "\x1b[2m", kNormal = "\x1b[22m";
constexpr std::string_view kBlanks = " \t\r\n";

}  // namespace

std::string AnswerPrinter::push(const TextParts& parts) {
  std::string out;
  if (shows_ && !parts.reasoning.empty()) {
    if (!reasons_ && terminal_) out += kDim;
    reasons_ = shown_ = true;
    out += wrap_.push(parts.reasoning);
  }
  if (parts.content.empty()) return out;
  std::string_view content = parts.content;
  if (shown_ && !began_) {  // the blank line after the reasoning is enough
    content.remove_prefix(std::min(content.find_first_not_of(kBlanks), content.size()));
    if (content.empty()) return out;
  }
  if (reasons_) out += leave_reasoning() + "\n\n";
  began_ = true;
  return out + wrap_.push(content);
}

std::string AnswerPrinter::finish() { return reasons_ ? leave_reasoning() : wrap_.finish(); }

std::string AnswerPrinter::leave_reasoning() {
  reasons_ = false;
  std::string out = wrap_.finish();
  wrap_ = WordWrap(columns_);
  while (!out.empty() && kBlanks.find(out.back()) != std::string_view::npos) out.pop_back();
  if (terminal_) out += kNormal;
  return out;
}

}  // namespace lathe
