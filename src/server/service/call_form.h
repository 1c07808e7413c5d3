// The form of calls that a chat template asks for, where it is JSON.
#pragma once

#include <optional>
#include <string_view>

#include "server/grammar/source.h"
#include "server/markup/tool_format.h"

namespace lathe {

/// A call of an answer in channels.
grammar::JsonCallForm harmony_call_form();

/// nullopt: the format writes arguments in another form.
std::optional<grammar::JsonCallForm> find_json_call_form(ToolFormat format,
                                                         std::string_view chat_template);

}  // namespace lathe
