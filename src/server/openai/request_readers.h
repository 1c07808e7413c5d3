// Readers of fields that are more than a number, a text or a list of them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "server/openai/field_readers.h"

namespace lathe {

inline constexpr std::int64_t kMostInt = std::numeric_limits<std::int32_t>::max();

/// Texts, tokens, or either: one, or a list of them.
Reader prompt_reader(bool text, bool tokens);
Reader messages_reader();
Reader logit_bias_reader();
/// At least one token id.
Reader allowed_tokens_reader();
Reader seed_reader();
Reader truncate_reader();
/// An integer with an upper bound that a flag sets.
Reader limited(std::string takes, std::int64_t least, std::int32_t FieldLimits::*most,
               std::string flag, std::function<void(ApiRequest&, std::int32_t)> set);
/// `true` means 1 in completions (openai), and a bool in chat.
Reader text_logprobs_reader();
Reader stream_options_reader();
/// Of /generate: an object, or a list of one for each prompt.
Reader sampling_params_reader();
Reader template_kwargs_reader();
Reader tools_reader();
Reader tool_choice_reader();
/// A name for the request, or a list of one for each prompt.
Reader rids_reader(std::size_t most, std::size_t most_bytes);
/// Other than 0 only with FieldLimits::priorities.
Reader priority_reader();

}  // namespace lathe
