// Tokens of a Jinja template, with Jinja's whitespace control and with trim_blocks and
// lstrip_blocks on, as Hugging Face renders chat templates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum.h"

namespace lathe {

#define LATHE_JINJA_TOKENS(X) \
  X(data)                     \
  X(variable_begin)           \
  X(variable_end) X(block_begin) X(block_end) X(word) X(text) X(integer) X(real) X(op) X(end)
LATHE_ENUM(JinjaTokenKind, LATHE_JINJA_TOKENS)

struct JinjaToken {
  JinjaTokenKind kind = JinjaTokenKind::end;
  int line = 0;
  std::string text;  // data, word, text (unescaped) or op; other kinds as written
  std::int64_t integer = 0;
  double real = 0;
};

/// The template's tokens; the last one is `end`. Throws JinjaFailure.
std::vector<JinjaToken> lex_jinja(std::string_view source);

}  // namespace lathe
