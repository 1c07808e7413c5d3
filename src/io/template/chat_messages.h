// Reads a conversation as OpenAI's clients write it into the form that chat templates expect.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace lathe {

/// Checks a list of messages ([{"role": ..., "content": ...}]) and changes each into a template's
/// form: the role developer becomes system, text parts one text with a part on each line, a call's
/// arguments in a string the object that they are (the last of equal names wins), an empty list of
/// calls or a null none, as in vLLM. A null content is an assistant's alone. Errors: the path
/// ("messages[1].content[0].type") of what is wrong.
Result<void> read_messages(nlohmann::ordered_json& messages);

/// Checks, as OpenAI does, that a result of a tool follows the assistant's message with its call,
/// with no messages but other results between them; that the calls of a message have different ids;
/// and that a call has one result. Accepted, as templates show them: ids that are missing or "",
/// where the order says which call a result is of; an id that an earlier message's call had, too;
/// calls without a result. `messages`: as read_messages() leaves them. Errors: the path of the id.
Result<void> check_results(const nlohmann::ordered_json& messages);

}  // namespace lathe
