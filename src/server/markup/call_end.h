// Where the text of a call ends, found as it arrives.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "server/markup/tool_format.h"

namespace lathe {

/// How far an open call was searched. Each byte is looked at once.
struct CallScan {
  bool plain = false;  // the first end mark counts, even inside quotes
  std::size_t at = 0;
  int depth = 0;        // of open brackets
  char quote = 0;       // the open quote; 0: none
  bool triple = false;  // it is Python's quote of three
};

struct CallEnd {
  std::size_t body;  // the text of the call ends here
  std::size_t next;  // and its end mark here
};

/// The end of the call that begins `text`, right after its begin mark; nullopt: not there yet. An
/// end mark inside a quoted string, or inside a parameter that has an end mark of its own, belongs
/// to the argument.
std::optional<CallEnd> find_call_end(const CallMarks& marks, std::string_view text, CallScan& scan);

/// The end of the JSON value or Python list that begins `text`; nullopt: not there yet. `text`
/// begins with a bracket.
std::optional<std::size_t> find_value_end(std::string_view text, CallScan& scan, bool python);

/// Whether text that begins with a bracket may become a call without marks, to one of `tools`: its
/// first words decide, so that other text is not held back.
bool may_be_json_call(std::string_view text, const nlohmann::ordered_json& tools);
bool may_be_python_call(std::string_view text, const nlohmann::ordered_json& tools);

}  // namespace lathe
