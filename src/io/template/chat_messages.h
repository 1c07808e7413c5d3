// Reads a conversation as OpenAI's clients write it into the form that chat templates expect.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace lathe {

/// Checks a list of messages ([{"role": ..., "content": ...}]) and changes each into a template's
/// form: the role developer becomes system, text parts one text with a part on each line, a call's
/// arguments in a string the object that they are. A null content is an assistant's alone. Errors:
/// the path ("messages[1].content[0].type") of what is wrong.
Result<void> read_messages(nlohmann::ordered_json& messages);

/// Checks that a result of a tool follows the assistant's message with its call, with no messages
/// but other results between them, as OpenAI does. A result without an id, and calls without ids,
/// are accepted. `messages`: as read_messages() leaves them. Errors: the path of the id.
Result<void> check_results(const nlohmann::ordered_json& messages);

}  // namespace lathe
