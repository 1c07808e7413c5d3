#include "server/service/request_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lathe {
namespace {

// Of lists of one answer: log-probabilities, tokens.
constexpr std::int64_t kMostEntries = 4'000'000;

std::int64_t default_max_tokens(ApiRoute route, std::int64_t room) {
  switch (route) {
    case ApiRoute::completions:
      return std::min<std::int64_t>(16, room);
    case ApiRoute::generate:
      return std::min<std::int64_t>(128, room);
    default:
      return room;
  }
}

// Rejects answers with too many log-probabilities.
std::optional<ApiError> fit_logprobs(const PreparedRequest& out) {
  const ApiRequest& api = out.api;
  const std::int64_t top = tokens_listed(api) + std::ssize(api.logprob_ids) + 1;
  std::int64_t positions = 0;
  for (std::size_t i = 0; i < out.prompts.size(); ++i) {
    positions += *out.sampling[i].max_tokens;
    if (out.score_from)
      positions += std::max<std::int64_t>(0, out.prompts[i].count - *out.score_from);
  }
  const std::int64_t entries = positions * api.n * top;  // far below 2^63
  if (entries <= kMostEntries) return std::nullopt;
  const std::string field = [&] {
    if (api.is_chat()) return "top_logprobs";
    if (api.route == ApiRoute::completions) {
      return api.prompt_logprobs ? "prompt_logprobs" : "logprobs";
    }
    return api.logprob_ids.empty() ? "top_logprobs_num" : "token_ids_logprob";
  }();
  return bad_field(
      field, fmt::format("tokens of all prompts x n x (logprobs + 1) of at most {}", kMostEntries),
      fmt::format("{} x {} x {} = {}", positions, api.n, top, entries));
}

ApiError long_prompt(const ServedModel& model, const ApiRequest& api, std::size_t i,
                     std::int64_t tokens, std::int64_t least_answer) {
  const std::string path = prompt_path(api, i, api.prompts.empty() ? true : api.prompts[i].is_text);
  return {400, "context_length_exceeded",
          fmt::format("{}: wanted at most {} tokens{}, got {}; a shorter prompt, or "
                      "--context-length and --max-total-tokens",
                      path, model.capacity - least_answer,
                      least_answer > 0 ? ", so that one of the answer fits" : "", tokens),
          path};
}

}  // namespace

std::string_view length_name(const ApiRequest& api) {
  return api.route == ApiRoute::generate    ? "max_new_tokens"
         : api.route == ApiRoute::responses ? "max_output_tokens"
         : api.completion_tokens            ? "max_completion_tokens"
                                            : "max_tokens";
}

std::string prompt_path(const ApiRequest& api, std::size_t i, bool is_text) {
  if (api.is_chat()) return "messages";
  const std::string name = api.route == ApiRoute::completions ? "prompt"
                           : is_text                          ? "text"
                                                              : "input_ids";
  return name + (api.batch ? fmt::format("[{}]", i) : "");
}

// As offsets_in(), of the text that the ids make.

std::int32_t tokens_listed(const ApiRequest& api) {
  return std::max(api.top_logprobs.value_or(0), api.prompt_logprobs.value_or(0));
}

std::optional<ApiError> fit_lists(const ApiRequest& api) {
  for (const auto& [field, size] :
       {std::pair{"stop_token_ids",
                  +[](const SamplingParams& p) { return std::ssize(p.stop_token_ids); }},
        std::pair{"logit_bias",
                  +[](const SamplingParams& p) { return std::ssize(p.logit_bias); }}}) {
    std::int64_t entries = 0;
    for (std::size_t i = 0; i < std::max<std::size_t>(1, api.prompts.size()); ++i) {
      entries += size(api.params(i).sampling);
    }
    if (entries * api.n <= kMostEntries) continue;
    return bad_field(params_name(api, 0) + field,
                     fmt::format("tokens of all prompts x n of at most {}", kMostEntries),
                     fmt::format("{} x {}", entries, api.n));
  }
  return std::nullopt;
}

std::optional<ApiError> fit_queue(const ServerOptions& options, const ApiRequest& api) {
  const std::int64_t prompts = std::max<std::int64_t>(1, std::ssize(api.prompts));
  if (prompts * api.params(0).n <= options.max_queued_requests) return std::nullopt;
  return bad_field(params_name(api, 0) + "n",
                   fmt::format("prompts x n of at most {}", options.max_queued_requests),
                   fmt::format("{} x {}", prompts, api.params(0).n), "--max-queued-requests");
}

std::optional<ApiError> fit_lengths(const ServedModel& model, const ServerOptions& options,
                                    PreparedRequest& out) {
  const ApiRequest& api = out.api;
  for (std::size_t i = 0; i < out.prompts.size(); ++i) {
    const std::optional<std::int32_t> wanted = api.params(i).max_tokens;
    const std::int64_t prompt = out.prompts[i].count;
    std::int64_t asked = wanted.value_or(1);
    const std::int64_t least = out.drops_answer(i) ? 0 : 1;
    if (prompt + least > model.capacity) return long_prompt(model, api, i, prompt, least);
    const std::int64_t room = model.capacity - prompt;
    // Anthropic's max_tokens is required, so the context may end an answer before.
    const bool clamps = options.clamp_max_tokens || api.route == ApiRoute::messages;
    if (clamps) asked = std::min(asked, room);
    if (prompt + asked > model.capacity) {
      const std::string field = params_name(api, i) + std::string(length_name(api));
      return ApiError{
          400, "context_length_exceeded",
          fmt::format(
              "{}: wanted prompt and answer of at most {} tokens, got {} of the prompt + {} "
              "of the answer = {}; a shorter prompt, a smaller {}, or --context-length and "
              "--max-total-tokens",
              field, model.capacity, prompt, asked, prompt + asked, field),
          field};
    }
    out.sampling[i].max_tokens = static_cast<std::int32_t>(
        wanted ? std::max<std::int64_t>(1, asked) : default_max_tokens(api.route, room));
  }
  if (!api.logprobs && !api.prompt_logprobs) return std::nullopt;
  if (api.prompt_logprobs || (api.route == ApiRoute::completions && api.echo)) out.score_from = 0;
  if (api.route == ApiRoute::generate && api.logprob_start_len >= 0) {
    for (const AnswerPrompt& p : out.prompts) {
      if (api.logprob_start_len <= p.count) continue;
      return bad_field("logprob_start_len", fmt::format("-1 to {}, the prompt's tokens", p.count),
                       fmt::format("{}", api.logprob_start_len));
    }
    out.score_from = api.logprob_start_len;
  }
  return fit_logprobs(out);
}

}  // namespace lathe
