// Parts of answers for tests: the same however the text is cut into pieces.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/markup/answer_parts.h"

namespace lathe {

inline std::string text_of(const TextParts& parts) {
  std::string out = "reasoning: " + parts.reasoning + "\ncontent: " + parts.content + "\n";
  for (const ToolCall& c : parts.calls) out += c.name + c.arguments + "\n";
  return out;
}

inline TextParts read_pieces(const MarkupRules& rules, const std::vector<std::string>& pieces,
                             bool whole = true) {
  AnswerParts machine(rules);
  TextParts out;
  for (const std::string& piece : pieces) machine.push(piece, out);
  machine.finish(out, whole);
  return out;
}

// Reads the text at once, by bytes, and cut at every place.
inline void expect_answer(const MarkupRules& rules, const std::string& text,
                          const std::string& wanted, bool whole = true) {
  EXPECT_EQ(text_of(read_pieces(rules, {text}, whole)), wanted) << text;
  std::vector<std::string> bytes;
  for (char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(text_of(read_pieces(rules, bytes, whole)), wanted) << "by bytes: " << text;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    EXPECT_EQ(text_of(read_pieces(rules, {text.substr(0, at), text.substr(at)}, whole)), wanted)
        << "cut at " << at << ": " << text;
  }
}

}  // namespace lathe
