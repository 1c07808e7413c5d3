// The form of calls that a chat template asks for, where a grammar can follow it.
#pragma once

#include <optional>
#include <string_view>

#include "server/grammar/source.h"
#include "server/markup/tool_format.h"

namespace lathe {

/// A call of an answer in channels.
grammar::CallForm harmony_call_form();

/// nullopt: the template shows none.
std::optional<grammar::CallForm> find_call_form(ToolFormat format, std::string_view chat_template);

}  // namespace lathe
