#include "tools/flags/sampling_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "engine/request/stop_strings.h"

namespace lathe {
namespace {

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// The error of a parameter, with the name of its flag.
Error own_names(Error e) {
  if (e.field == "top_logprobs_num") e.field = "logprobs";
  std::ranges::replace(e.field, '_', '-');
  e.field = "--" + e.field;
  return e;
}

}  // namespace

void add_sampling_flags(Command command, SamplingFlags& flags) {
  SamplingParams& p = flags.params;
  command.add_option("--temperature", flags.temperature, "0 takes the most likely token");
  command.add_option("--top-k", flags.top_k, "the k most likely tokens; -1 = all");
  command.add_option("--top-p", flags.top_p, "the fewest tokens whose probability reaches it");
  command.add_option("--min-p", flags.min_p,
                     "tokens at least this times as likely as the most likely one");
  command.add_option("--seed", p.seed, "of the draws; equal seeds give equal answers");
  command.add_option("--repetition-penalty", flags.repetition_penalty,
                     "divides logits of tokens in prompt or answer");
  command.add_option("--frequency-penalty", p.frequency_penalty,
                     "taken off for each time the answer has the token");
  command.add_option("--presence-penalty", p.presence_penalty,
                     "taken off once if the answer has the token");
  command.add_option("--logit-bias", flags.logit_bias, "ID=BIAS, added to a token's logit");
  command.add_option("--stop", flags.stop, "text that ends the answer and is not printed");
  command.add_option("--stop-token-ids", p.stop_token_ids, "tokens that end the answer");
  command.add_flag("--ignore-eos", p.ignore_eos, "the model's end tokens do not end the answer");
  command.add_option("--max-new-tokens,--max-tokens,--n-predict", p.max_tokens,
                     "tokens of the answer; default: what context and cache hold");
  command.add_option("--min-new-tokens", p.min_tokens, "no end before this many tokens");
}

Result<void> check_sampling_flags(const SamplingFlags& flags) {
  SamplingFlags numbers = flags;
  numbers.params.logprobs.reset();
  numbers.params.stop_token_ids.clear();
  numbers.logit_bias.clear();
  ModelConfig any;
  any.vocab = std::numeric_limits<std::int32_t>::max();
  if (const auto params = sampling_params(numbers, any); !params) return params.error();
  return {};
}

Result<SamplingParams> sampling_params(const SamplingFlags& flags, const ModelConfig& config) {
  const GenerationDefaults& defaults = config.generation;
  SamplingParams p = flags.params;
  p.temperature = flags.temperature.value_or(defaults.temperature.value_or(0.0f));
  p.top_k = flags.top_k.value_or(defaults.top_k.value_or(-1));
  p.top_p = flags.top_p.value_or(defaults.top_p.value_or(1.0f));
  p.min_p = flags.min_p.value_or(defaults.min_p.value_or(0.0f));
  p.repetition_penalty =
      flags.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0f));
  for (const std::string& text : flags.logit_bias) {
    const std::size_t at = text.find('=');
    LogitBias bias;
    if (at == std::string::npos ||
        !parse_number(std::string_view(text).substr(0, at), bias.token) ||
        !parse_number(std::string_view(text).substr(at + 1), bias.bias) ||
        !(bias.bias >= -100 && bias.bias <= 100)) {
      return Error{ErrorCode::invalid_argument, "--logit-bias",
                   "ID=BIAS, such as 42=-5, with a bias from -100 to 100", "\"" + text + "\"", ""};
    }
    const auto same = [&](const LogitBias& other) { return other.token == bias.token; };
    if (std::ranges::any_of(p.logit_bias, same)) {
      return Error{ErrorCode::invalid_argument, "--logit-bias", "each token once",
                   fmt::format("{} twice", bias.token), ""};
    }
    p.logit_bias.push_back(bias);
  }
  if (const auto ok = check_sampling_params(p, config.vocab, {}); !ok) {
    return own_names(ok.error());
  }
  if (const auto ok = StopStrings::create(flags.stop); !ok) return own_names(ok.error());
  return p;
}

}  // namespace lathe
