#include "capi/sampling_json.h"

#include <fmt/format.h>

#include <optional>

#include "capi/json.h"

namespace lathe::capi {
namespace {

template <class T>
Result<void> set_optional(const std::string& key, const Json& value, std::optional<T>& to,
                          Result<void> (*set)(const std::string&, const Json&, T&)) {
  T read{};
  if (auto ok = set(key, value, read); !ok) return ok;
  to = read;
  return {};
}

using Setter = Result<void> (*)(const std::string& key, const Json& value, RequestParams& to);

struct Param {
  std::string_view key;
  Setter set;
};

#define LATHE_PARAM(key, call)                                                      \
  {                                                                                 \
    key, [](const std::string& k, const Json& v, RequestParams& p) { return call; } \
  }

const Param kParams[] = {
    LATHE_PARAM("max_new_tokens", set_optional(k, v, p.sampling.max_tokens, set_int)),
    LATHE_PARAM("min_new_tokens", set_int(k, v, p.sampling.min_tokens)),
    LATHE_PARAM("temperature", set_float(k, v, p.sampling.temperature)),
    LATHE_PARAM("top_k", set_int(k, v, p.sampling.top_k)),
    LATHE_PARAM("top_p", set_float(k, v, p.sampling.top_p)),
    LATHE_PARAM("min_p", set_float(k, v, p.sampling.min_p)),
    LATHE_PARAM("seed", set_optional(k, v, p.sampling.seed, set_seed)),
    LATHE_PARAM("repetition_penalty", set_float(k, v, p.sampling.repetition_penalty)),
    LATHE_PARAM("frequency_penalty", set_float(k, v, p.sampling.frequency_penalty)),
    LATHE_PARAM("presence_penalty", set_float(k, v, p.sampling.presence_penalty)),
    LATHE_PARAM("stop", set_strings(k, v, p.stop)),
    LATHE_PARAM("stop_token_ids", set_ints(k, v, p.sampling.stop_token_ids)),
    LATHE_PARAM("ignore_eos", set_bool(k, v, p.sampling.ignore_eos)),
    LATHE_PARAM("logprobs", set_optional(k, v, p.sampling.logprobs, set_int)),
    LATHE_PARAM("cache_salt", set_string(k, v, p.cache_salt)),
    LATHE_PARAM("priority", set_int(k, v, p.priority)),
};
#undef LATHE_PARAM

}  // namespace

Result<RequestParams> read_params(const char* text, const GenerationDefaults& defaults) {
  RequestParams p;
  p.sampling.temperature = defaults.temperature.value_or(0.0f);
  p.sampling.top_k = defaults.top_k.value_or(-1);
  p.sampling.top_p = defaults.top_p.value_or(1.0f);
  p.sampling.min_p = defaults.min_p.value_or(0.0f);
  p.sampling.repetition_penalty = defaults.repetition_penalty.value_or(1.0f);
  if (text == nullptr) return p;
  const auto object = parse_object(text, "params");
  if (!object) return object.error();
  for (const auto& [key, value] : object->items()) {
    std::string known;
    const Param* found = nullptr;
    for (const Param& param : kParams) {
      known += (known.empty() ? "" : ", ") + std::string(param.key);
      if (param.key == key) found = &param;
    }
    if (found == nullptr) {
      return Error{ErrorCode::invalid_argument, key, "one of " + known, "an unknown key", ""};
    }
    if (auto ok = found->set(key, value, p); !ok) return ok.error();
  }
  return p;
}

}  // namespace lathe::capi
