#include "ops/sampling_params.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lathe {
namespace {

Error outside(std::string field, std::string wanted, std::string offered, std::string hint = "") {
  return {ErrorCode::out_of_range, std::move(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

constexpr float kLargest = std::numeric_limits<float>::max();

// Checks that a value is in [least, most], or in (least, most] if `open`. NaN fails.
Result<void> within(const char* field, float value, float least, float most, bool open = false) {
  if ((open ? value > least : value >= least) && value <= most) return {};
  const std::string wanted = most == kLargest ? fmt::format("a finite number of {} or more", least)
                             : open           ? fmt::format("above {} to {}", least, most)
                                              : fmt::format("{} to {}", least, most);
  return outside(field, wanted, fmt::format("{}", value));
}

Result<void> check_token(const std::string& field, std::int32_t token, std::int32_t vocab) {
  if (token >= 0 && token < vocab) return {};
  return outside(field, fmt::format("a token from 0 to {}", vocab - 1), fmt::format("{}", token));
}

Result<void> check_numbers(const SamplingParams& p, std::int32_t vocab) {
  for (const Result<void>& ok :
       {within("temperature", p.temperature, 0, kLargest), within("top_p", p.top_p, 0, 1, true),
        within("min_p", p.min_p, 0, 1),
        within("repetition_penalty", p.repetition_penalty, 0, 2, true),
        within("frequency_penalty", p.frequency_penalty, -2, 2),
        within("presence_penalty", p.presence_penalty, -2, 2)}) {
    if (!ok) return ok;
  }
  if (p.top_k != -1 && p.top_k < 1) {
    return outside("top_k", "1 or more, or -1 for all tokens", fmt::format("{}", p.top_k));
  }
  if (p.logprobs && (*p.logprobs < 0 || *p.logprobs > vocab)) {
    return outside("top_logprobs_num", fmt::format("0 to {}", vocab),
                   fmt::format("{}", *p.logprobs));
  }
  return {};
}

Result<void> check_lengths(const SamplingParams& p) {
  if (p.max_tokens && *p.max_tokens < 1) {
    return outside("max_new_tokens", "1 or more", fmt::format("{}", *p.max_tokens));
  }
  if (p.min_tokens < 0) {
    return outside("min_new_tokens", "0 or more", fmt::format("{}", p.min_tokens));
  }
  if (p.max_tokens && p.min_tokens > *p.max_tokens) {
    return outside("min_new_tokens", fmt::format("at most max_new_tokens, {}", *p.max_tokens),
                   fmt::format("{}", p.min_tokens));
  }
  return {};
}

}  // namespace

Result<void> check_sampling_params(const SamplingParams& p, std::int32_t vocab,
                                   std::span<const std::int32_t> eos) {
  if (auto ok = check_numbers(p, vocab); !ok) return ok;
  if (auto ok = check_lengths(p); !ok) return ok;
  for (const LogitBias& b : p.logit_bias) {
    const std::string field = fmt::format("logit_bias.{}", b.token);  // requests have an object
    if (auto ok = check_token(field, b.token, vocab); !ok) return ok;
    if (!std::isfinite(b.bias)) {
      return outside(field, "a finite number", fmt::format("{}", b.bias),
                     "-100 rules a token out in practice");
    }
  }
  for (std::size_t i = 0; i < p.stop_token_ids.size(); ++i) {
    const std::string field = fmt::format("stop_token_ids[{}]", i);
    if (auto ok = check_token(field, p.stop_token_ids[i], vocab); !ok) return ok;
  }
  for (std::size_t i = 0; i < p.logprob_ids.size(); ++i) {
    const std::string field = fmt::format("token_ids_logprob[{}]", i);
    if (auto ok = check_token(field, p.logprob_ids[i], vocab); !ok) return ok;
  }
  if (p.min_tokens > 0 && std::ssize(stop_tokens(p, eos)) >= vocab) {
    return outside("min_new_tokens", "0 where every token is a stop token",
                   fmt::format("{}", p.min_tokens));
  }
  return {};
}

std::vector<std::int32_t> stop_tokens(const SamplingParams& params,
                                      std::span<const std::int32_t> eos) {
  std::vector<std::int32_t> out = params.stop_token_ids;
  if (!params.ignore_eos) out.insert(out.end(), eos.begin(), eos.end());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace lathe
