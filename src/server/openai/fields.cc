#include "server/openai/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/edit_distance.h"
#include "server/openai/constraint_fields.h"
#include "server/openai/field_readers.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kAnyInt = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kLeastInt = std::numeric_limits<std::int32_t>::min();
constexpr double kAnyNumber = std::numeric_limits<float>::max();
constexpr std::size_t kMostStops = 32;
constexpr std::size_t kMostStopBytes = 1024;
constexpr std::size_t kMostBadWords = 256;
constexpr std::size_t kMostIdBytes = 512;
constexpr std::size_t kMostSaltBytes = 256;
constexpr unsigned kOpenAi = kInChat | kInCompletions;
constexpr unsigned kSamples = kOpenAi | kInSampling;
constexpr unsigned kAll = kOpenAi | kInGenerate;

std::optional<ApiError> read_prompt(const Json& value, const FieldContext& at, bool text,
                                    bool tokens, ApiRequest& out) {
  const std::string wanted = text && tokens ? "text, tokens, or a list of either"
                             : text         ? "text, or a list of texts"
                                            : "tokens, or a list of tokens' lists";
  const auto read_one = [&](const Json& one, const std::string& path) -> std::optional<ApiError> {
    const FieldContext here{path, at.limits};
    PromptInput input;
    if (text && one.is_string()) {
      input.text = one.get<std::string>();
      if (input.text.empty()) return bad_field(path, "at least one token", "\"\"");
    } else if (tokens && one.is_array()) {
      input.is_text = false;
      if (one.empty()) return bad_field(path, "at least one token", "[]");
      for (std::size_t i = 0; i < one.size(); ++i) {
        const auto id = integer_of(one[i], 0, kAnyInt);
        if (!id)
          return wrong_value({fmt::format("{}[{}]", path, i), at.limits}, "a token id", one[i]);
        input.tokens.push_back(static_cast<std::int32_t>(*id));
      }
    } else {
      return wrong_value(here, wanted, one);
    }
    out.prompts.push_back(std::move(input));
    return std::nullopt;
  };
  if (!out.prompts.empty()) return bad_field(at.path, "text or input_ids", "both");
  const bool list = value.is_array() && (value.empty() || !value[0].is_number());
  if (!list) return read_one(value, at.path);
  if (value.empty()) return bad_field(at.path, "at least one prompt", "[]");
  if (std::ssize(value) > at.limits.max_prompts) {
    return bad_field(at.path, fmt::format("at most {} prompts", at.limits.max_prompts),
                     fmt::format("{}", value.size()), "--max-prompts");
  }
  out.batch = true;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (auto wrong = read_one(value[i], fmt::format("{}[{}]", at.path, i))) return wrong;
  }
  return std::nullopt;
}

Reader prompt(bool text, bool tokens) {
  return {text && tokens ? "text, token ids, or a list of either"
          : text         ? "text or a list of texts"
                         : "token ids or a list of such lists",
          [=](const Json& value, const FieldContext& at, ApiRequest& out) {
            return read_prompt(value, at, text, tokens, out);
          }};
}

Reader messages() {
  return {
      "a list of messages, at least one",
      [](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_array() || value.empty()) {
          return wrong_value(at, "a list of messages, at least one", value);
        }
        out.messages = value;
        return std::nullopt;
      }};
}

Reader logit_bias() {
  const std::string takes = R"({"token id": number from -100 to 100})";
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_object()) return wrong_value(at, takes, value);
        for (const auto& [key, bias] : value.items()) {
          const bool digits =
              !key.empty() && key.size() <= 9 &&
              std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
          if (!digits) return bad_field(at.path, "token ids as names", excerpt(Json(key)));
          const double b = bias.is_number() ? bias.get<double>() : 1000;
          if (!(b >= -100 && b <= 100)) {
            return wrong_value({at.path + "." + key, at.limits}, "a number from -100 to 100", bias);
          }
          out.sampling.logit_bias.push_back({std::stoi(key), static_cast<float>(b)});
        }
        return std::nullopt;
      }};
}

Reader allowed_tokens() {
  const Reader ids = token_ids(
      [](ApiRequest& r, std::vector<std::int32_t> list) { r.allowed_token_ids = std::move(list); });
  return {ids.takes,
          [read = ids.read](const Json& value, const FieldContext& at,
                            ApiRequest& out) -> std::optional<ApiError> {
            if (auto wrong = read(value, at, out)) return wrong;
            if (!out.allowed_token_ids.empty()) return std::nullopt;
            return bad_field(at.path, "at least one token", "[]");
          }};
}

Reader seed() {
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  return integer(least, most, [](ApiRequest& r, std::int64_t i) {
    if (i != -1) r.sampling.seed = static_cast<std::uint64_t>(i);  // as in vLLM and llama.cpp
  });
}

// An integer with an upper bound that a flag sets.
Reader limited(std::string takes, std::int64_t least, std::int32_t FieldLimits::*most,
               std::string flag, std::function<void(ApiRequest&, std::int32_t)> set) {
  return {
      std::move(takes),
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        const auto i = integer_of(value, least, at.limits.*most);
        if (!i) {
          return wrong_value(at, fmt::format("an integer from {} to {}", least, at.limits.*most),
                             value, flag);
        }
        set(out, static_cast<std::int32_t>(*i));
        return std::nullopt;
      }};
}

// `true` means 1 in completions (openai), and a bool in chat.
Reader text_logprobs() {
  const Reader count = limited("an integer from 0 to --max-logprobs", 0, &FieldLimits::max_logprobs,
                               "--max-logprobs", [](ApiRequest& r, std::int32_t i) {
                                 r.logprobs = true;
                                 r.top_logprobs = i;
                               });
  return {count.takes,
          [read = count.read](const Json& value, const FieldContext& at,
                              ApiRequest& out) -> std::optional<ApiError> {
            if (!value.is_boolean()) return read(value, at, out);
            out.logprobs = value.get<bool>();
            if (out.logprobs) out.top_logprobs = 1;
            return std::nullopt;
          }};
}

Reader stream_options() {
  return {
      "{include_usage, continuous_usage_stats}",
      [](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_object()) return wrong_value(at, "an object", value);
        out.has_stream_options = true;
        for (const auto& [name, option] : value.items()) {
          if (option.is_null()) continue;
          const FieldContext here{at.path + "." + name, at.limits};
          bool* const into = name == "include_usage"            ? &out.include_usage
                             : name == "continuous_usage_stats" ? &out.continuous_usage
                                                                : nullptr;
          if (into == nullptr) {
            out.ignored.push_back(here.path);
            continue;
          }
          if (!option.is_boolean()) return wrong_value(here, "true or false", option);
          *into = option.get<bool>();
        }
        return std::nullopt;
      }};
}

Reader sampling_params() {
  return {
      "an object, or a list of one for each prompt",
      [](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (value.is_object()) {
          return read_fields(value, fields_of(kInSampling), at.path + ".", at.limits, out);
        }
        if (!value.is_array() || value.empty()) {
          return wrong_value(at, "an object, or a list of one for each prompt", value);
        }
        for (std::size_t i = 0; i < value.size(); ++i) {
          const std::string path = fmt::format("{}[{}]", at.path, i);
          if (!value[i].is_object()) return wrong_value({path, at.limits}, "an object", value[i]);
          ApiRequest one;
          if (auto wrong =
                  read_fields(value[i], fields_of(kInSampling), path + ".", at.limits, one)) {
            return wrong;
          }
          out.ignored.insert(out.ignored.end(), one.ignored.begin(), one.ignored.end());
          out.each.push_back(std::move(one));
        }
        out.n = out.each[0].n;
        return std::nullopt;
      }};
}

Reader template_kwargs() {
  return {
      "an object",
      [](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_object()) return wrong_value(at, "an object", value);
        for (const char* own : {"messages", "tools", "add_generation_prompt"}) {
          if (value.contains(own)) {
            return bad_field(at.path + "." + own, "names that are not the request's own", own);
          }
        }
        out.template_kwargs = value;
        return std::nullopt;
      }};
}

Reader tools() {
  return {
      "a list of functions",
      [](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_array()) return wrong_value(at, "a list of functions", value);
        for (std::size_t i = 0; i < value.size(); ++i) {
          const std::string path = fmt::format("{}[{}]", at.path, i);
          const Json& tool = value[i];
          if (!tool.is_object() || tool.value("type", Json()) != "function") {
            // Built-in tools of other servers, such as browser and code_interpreter.
            const Json type = tool.is_object() ? tool.value("type", Json()) : Json();
            return bad_field(path + ".type", "\"function\", as the server runs no tools itself",
                             excerpt(type.is_string() ? type : tool));
          }
          if (!tool.contains("function") || !tool["function"].is_object()) {
            return bad_field(path + ".function", "an object", excerpt(tool));
          }
          const Json& function = tool["function"];
          if (!function.contains("name") || !function["name"].is_string()) {
            return bad_field(path + ".function.name", "a string", excerpt(function));
          }
          const Json strict = function.value("strict", Json());
          if (!strict.is_null() && !strict.is_boolean()) {
            return bad_field(path + ".function.strict", "true or false", excerpt(strict));
          }
        }
        if (!value.empty()) out.tools = value;
        return std::nullopt;
      }};
}

Reader tool_choice() {
  const std::string takes =
      R"("auto", "none", "required" or {"type": "function", "function": {"name"}})";
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        const bool word = value == "auto" || value == "none" || value == "required";
        const bool function = value.is_object() && value.value("type", Json()) == "function" &&
                              value.contains("function") && value["function"].is_object() &&
                              value["function"].value("name", Json()).is_string();
        if (!word && !function) return wrong_value(at, takes, value);
        out.tool_choice = value;
        return std::nullopt;
      }};
}

Reader priority() {
  const std::string takes = fmt::format("an integer from {} to {}", kLeastInt, kAnyInt);
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        const auto i = integer_of(value, kLeastInt, kAnyInt);
        if (!i) return wrong_value(at, takes, value);
        out.priority = static_cast<std::int32_t>(*i);
        if (out.priority == 0 || at.limits.priorities) return std::nullopt;
        return ApiError{400, "unsupported_field",
                        at.path + ": wanted 0, as requests are served in order of arrival, got " +
                            excerpt(value) + "; --scheduling-policy priority",
                        at.path};
      }};
}

Field field(std::string_view name, unsigned places, Reader reader, std::string_view absent,
            std::string_view note) {
  return {name, places, std::move(reader.takes), absent, note, std::move(reader.read)};
}

void add_prompts(std::vector<Field>& out) {
  out.push_back(
      field("model", kAll,
            string(kMostIdBytes, [](ApiRequest& r, std::string s) { r.model = std::move(s); }),
            "the first", "a name that the server was given; \"default\" is the first"));
  out.push_back(field("messages", kInChat, messages(), "required",
                      "roles system, developer, user, assistant, tool"));
  out.push_back(field("prompt", kInCompletions, prompt(true, true), "required", ""));
  out.push_back(field("text", kInGenerate, prompt(true, false), "", "this or input_ids"));
  out.push_back(field("input_ids", kInGenerate, prompt(false, true), "", "this or text"));
  out.push_back(
      field("sampling_params", kInGenerate, sampling_params(), "{}", "the fields under S"));
  const auto truncate = integer(-1, kAnyInt, [](ApiRequest& r, std::int64_t i) {
    r.truncate_prompt_tokens = static_cast<std::int32_t>(i);
  });
  out.push_back(field("truncate_prompt_tokens", kOpenAi, truncate, "none",
                      "keeps the last tokens of a longer prompt; -1: as many as fit"));
}

void add_sampling(std::vector<Field>& out) {
  const auto max_tokens = [](std::int64_t least) {
    return integer(least, kAnyInt, [](ApiRequest& r, std::int64_t i) {
      r.max_tokens = static_cast<std::int32_t>(i);
    });
  };
  out.push_back(field("max_tokens", kInChat, max_tokens(1), "rest of context", ""));
  out.push_back(field("max_completion_tokens", kInChat, max_tokens(1), "max_tokens",
                      "takes precedence over max_tokens"));
  out.push_back(field("max_tokens", kInCompletions, max_tokens(0), "16", "0 only with echo"));
  out.push_back(field("max_new_tokens", kInSampling, max_tokens(1), "128", ""));
  out.push_back(field("temperature", kSamples,
                      number({0, kAnyNumber}, [](ApiRequest& r, float f) { r.temperature = f; }),
                      "model's, 1", "0 takes the most likely token"));
  out.push_back(field("top_p", kSamples,
                      number({0, 1, true}, [](ApiRequest& r, float f) { r.top_p = f; }),
                      "model's, 1", ""));
  out.push_back(field("top_k", kSamples,
                      integer(-1, kAnyInt,
                              [](ApiRequest& r, std::int64_t i) {
                                r.top_k = i == 0 ? -1 : static_cast<std::int32_t>(i);
                              }),
                      "model's, -1", "-1 and 0: all"));
  out.push_back(field("min_p", kSamples,
                      number({0, 1}, [](ApiRequest& r, float f) { r.sampling.min_p = f; }), "0",
                      ""));
  out.push_back(field(
      "frequency_penalty", kSamples,
      number({-2, 2}, [](ApiRequest& r, float f) { r.sampling.frequency_penalty = f; }), "0", ""));
  out.push_back(field(
      "presence_penalty", kSamples,
      number({-2, 2}, [](ApiRequest& r, float f) { r.sampling.presence_penalty = f; }), "0", ""));
  out.push_back(
      field("repetition_penalty", kSamples,
            number({0, 2, true}, [](ApiRequest& r, float f) { r.repetition_penalty = f; }),
            "model's, 1", ""));
  out.push_back(field("logit_bias", kSamples, logit_bias(), "none", "ids of the vocabulary"));
  out.push_back(field("seed", kOpenAi, seed(), "the server's",
                      "-1: the server's; choice i of a prompt has a seed made of it and i"));
  out.push_back(field("sampling_seed", kInSampling, seed(), "the server's", "-1: the server's"));
  out.push_back(field("n", kSamples,
                      limited("an integer from 1 to --max-n", 1, &FieldLimits::max_n, "--max-n",
                              [](ApiRequest& r, std::int32_t i) { r.n = i; }),
                      "1", "choice i of prompt p has index p * n + i"));
  out.push_back(field(
      "best_of", kInCompletions,
      integer(1, kAnyInt,
              [](ApiRequest& r, std::int64_t i) { r.best_of = static_cast<std::int32_t>(i); }),
      "n", "at most n"));
  out.push_back(field("min_tokens", kOpenAi,
                      integer(0, kAnyInt,
                              [](ApiRequest& r, std::int64_t i) {
                                r.sampling.min_tokens = static_cast<std::int32_t>(i);
                              }),
                      "0", "no end before"));
  out.push_back(field("min_new_tokens", kInSampling,
                      integer(0, kAnyInt,
                              [](ApiRequest& r, std::int64_t i) {
                                r.sampling.min_tokens = static_cast<std::int32_t>(i);
                              }),
                      "0", ""));
}

void add_ends(std::vector<Field>& out) {
  const auto keep = [] { return boolean([](ApiRequest& r, bool b) { r.keep_stop = b; }); };
  out.push_back(
      field("stop", kSamples,
            strings(kMostStops, kMostStopBytes, false,
                    [](ApiRequest& r, std::vector<std::string> s) { r.stop = std::move(s); }),
            "none", "text that ends the answer and is cut from it"));
  out.push_back(field("include_stop_str_in_output", kOpenAi, keep(), "false", "keeps it"));
  out.push_back(field("no_stop_trim", kSamples, keep(), "false", "the same"));
  out.push_back(field("stop_token_ids", kSamples,
                      token_ids([](ApiRequest& r, std::vector<std::int32_t> ids) {
                        r.sampling.stop_token_ids = std::move(ids);
                      }),
                      "none", "in addition to the model's own"));
  out.push_back(field("ignore_eos", kSamples,
                      boolean([](ApiRequest& r, bool b) { r.sampling.ignore_eos = b; }), "false",
                      "the model's end tokens end nothing"));
  out.push_back(field("skip_special_tokens", kSamples,
                      boolean([](ApiRequest& r, bool b) { r.skip_special_tokens = b; }), "true",
                      ""));
}

void add_shapes(std::vector<Field>& out) {
  out.push_back(field("stream", kAll, boolean([](ApiRequest& r, bool b) { r.stream = b; }), "false",
                      "server-sent events"));
  out.push_back(field("stream_options", kOpenAi, stream_options(), "{}", "only with stream"));
  out.push_back(field("incremental", kInGenerate,
                      boolean([](ApiRequest& r, bool b) { r.incremental = b; }), "false",
                      "stream parts; otherwise each event has all so far"));
  out.push_back(field("logprobs", kInChat, boolean([](ApiRequest& r, bool b) { r.logprobs = b; }),
                      "false", ""));
  out.push_back(field("logprobs", kInCompletions, text_logprobs(), "none", "true means 1"));
  const auto top = [] {
    return limited("an integer from 0 to --max-logprobs", 0, &FieldLimits::max_logprobs,
                   "--max-logprobs", [](ApiRequest& r, std::int32_t i) { r.top_logprobs = i; });
  };
  out.push_back(field("top_logprobs", kInChat, top(), "0", "only with logprobs"));
  out.push_back(field("return_logprob", kInGenerate,
                      boolean([](ApiRequest& r, bool b) { r.logprobs = b; }), "false", ""));
  out.push_back(field("top_logprobs_num", kInGenerate, top(), "0", ""));
  out.push_back(field("logprob_start_len", kInGenerate,
                      integer(-1, kAnyInt,
                              [](ApiRequest& r, std::int64_t i) {
                                r.logprob_start_len = static_cast<std::int32_t>(i);
                              }),
                      "-1", "from this token of the prompt on; -1: only the answer's"));
  out.push_back(field("token_ids_logprob", kInGenerate,
                      token_ids([](ApiRequest& r, std::vector<std::int32_t> ids) {
                        r.logprob_ids = std::move(ids);
                      }),
                      "none", "with return_logprob: also of these tokens, at each position"));
  out.push_back(field("return_text_in_logprobs", kInGenerate,
                      boolean([](ApiRequest& r, bool b) { r.text_in_logprobs = b; }), "false", ""));
  out.push_back(field("echo", kInCompletions, boolean([](ApiRequest& r, bool b) { r.echo = b; }),
                      "false", "the prompt's text comes first"));
  out.push_back(
      field("prompt_logprobs", kInCompletions,
            limited("an integer from 0 to --max-logprobs", 0, &FieldLimits::max_logprobs,
                    "--max-logprobs", [](ApiRequest& r, std::int32_t i) { r.prompt_logprobs = i; }),
            "none", "of each of the prompt's tokens, and so many of the likeliest; no stream"));
  out.push_back(field("return_token_ids", kOpenAi,
                      boolean([](ApiRequest& r, bool b) { r.return_token_ids = b; }), "false",
                      "adds token_ids and prompt_token_ids"));
  out.push_back(field("return_tokens_as_token_ids", kOpenAi,
                      boolean([](ApiRequest& r, bool b) { r.tokens_as_ids = b; }), "false",
                      "tokens in logprobs read token_id:N"));
}

void add_chat(std::vector<Field>& out) {
  out.push_back(field("tools", kInChat, tools(), "none", "of a model whose template has tools"));
  out.push_back(
      field("tool_choice", kInChat, tool_choice(), "auto",
            "none: the template does not see them; required, a function: the answer is a call"));
  out.push_back(field("parallel_tool_calls", kInChat,
                      boolean([](ApiRequest& r, bool b) { r.parallel_tool_calls = b; }), "true",
                      "false: the first call ends the answer"));
  out.push_back(field("separate_reasoning", kInChat,
                      boolean([](ApiRequest& r, bool b) { r.separate_reasoning = b; }), "true",
                      "false: reasoning stays in content, marks and all"));
  out.push_back(field("chat_template_kwargs", kInChat, template_kwargs(), "{}",
                      "variables for the chat template"));
  out.push_back(
      field("reasoning_effort", kInChat,
            string(64, [](ApiRequest& r, std::string s) { r.reasoning_effort = std::move(s); }),
            "the template's", "a variable of the template"));
  out.push_back(field("continue_final_message", kInChat,
                      boolean([](ApiRequest& r, bool b) { r.continue_final_message = b; }), "false",
                      "the answer goes on with the last message"));
  out.push_back(field("add_generation_prompt", kInChat,
                      boolean([](ApiRequest& r, bool b) { r.add_generation_prompt = b; }), "true",
                      ""));
}

void add_constraints(std::vector<Field>& out) {
  out.push_back(field("response_format", kOpenAi, response_format(), "text",
                      "the answer is an object, or a value that the schema allows"));
  out.push_back(field("json_schema", kSamples, json_schema(), "none",
                      "the answer is a value that it allows"));
  out.push_back(field("regex", kSamples, regex(), "none", "the whole answer matches it"));
  out.push_back(field("ebnf", kSamples, grammar_rules(), "none", "the whole answer follows it"));
  out.push_back(field("grammar", kSamples, grammar_rules(), "none", "as ebnf"));
  out.push_back(field("structured_outputs", kSamples, structured_outputs(), "none",
                      "one of them; choice: texts of which one is the answer"));
  out.push_back(field("guided_json", kSamples, json_schema(), "none", "as json_schema"));
  out.push_back(field("guided_regex", kSamples, regex(), "none", "as regex"));
  out.push_back(field("guided_choice", kSamples, choice(), "none", "the answer is one of them"));
  out.push_back(field("guided_grammar", kSamples, grammar_rules(), "none", "as ebnf"));
  out.push_back(field("allowed_token_ids", kOpenAi, allowed_tokens(), "all",
                      "the answer has no others; an end token must be among them to end it"));
  const auto bad = strings(kMostBadWords, kMostStopBytes, false,
                           [](ApiRequest& r, std::vector<std::string> s) { r.bad_words = s; });
  out.push_back(field("bad_words", kOpenAi, bad, "none",
                      "texts whose tokens the answer does not have in a row"));
}

void add_labels(std::vector<Field>& out) {
  out.push_back(
      field("rid", kAll,
            strings(1024, kMostIdBytes, false,
                    [](ApiRequest& r, std::vector<std::string> s) { r.rids = std::move(s); }),
            "ours", "the client's name for the request, for /abort_request; /generate echoes it"));
  for (const char* name :
       {"request_id", "user", "safety_identifier", "prompt_cache_key", "service_tier"}) {
    out.push_back(field(name, kAll, string(kMostIdBytes, [](ApiRequest&, const std::string&) {}),
                        "", "no effect"));
  }
  out.push_back(field("metadata", kAll, unread(), "", "no effect"));
  out.push_back(field("store", kAll, unread(), "", "no effect: nothing is stored"));
  out.push_back(field("priority", kAll, priority(), "0",
                      "lower ones first; other than 0 with --scheduling-policy priority"));
  out.push_back(field(
      "cache_salt", kAll,
      string(kMostSaltBytes, [](ApiRequest& r, std::string s) { r.cache_salt = std::move(s); }),
      "none", "only prompts with an equal one share the prefix cache"));
}

void add_unsupported(std::vector<Field>& out) {
  for (const char* name : {"functions", "function_call"}) {
    out.push_back(
        field(name, kInChat, unsupported("tools and tool_choice replace them"), "", "400"));
  }
  out.push_back(
      field("prompt_logprobs", kInChat, unsupported("/v1/completions has it"), "", "400"));
  for (const char* name :
       {"return_hidden_states", "return_routed_experts", "image_data", "audio_data",
        "session_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "input_embeds"}) {
    out.push_back(field(name, kInGenerate | kInSampling,
                        unsupported("this server does not support it"), "", "400"));
  }
  for (const char* name :
       {"suffix", "audio", "modalities", "images", "prediction", "logits_processor"}) {
    out.push_back(field(name, kOpenAi, unsupported("this server does not support it"), "", "400"));
  }
  for (const char* name : {"lora_path", "custom_params", "stop_regex"}) {
    out.push_back(
        field(name, kAll | kInSampling, unsupported("this server does not support it"), "", "400"));
  }
}

std::string places_text(unsigned places) {
  std::string out;
  for (const auto& [bit, letter] :
       {std::pair{kInChat, 'C'}, {kInCompletions, 'T'}, {kInGenerate, 'G'}, {kInSampling, 'S'}}) {
    out += (places & bit) != 0 ? letter : ' ';
  }
  return out;
}

FieldTable chosen_fields(FieldPlace place) {
  FieldTable out;
  for (const Field& f : request_fields()) {
    if ((f.places & place) != 0) out.push_back(f);
  }
  return out;
}

std::string field_line(const Field& f, std::string_view letters) {
  std::string line = fmt::format("{:28} {}  {}", f.name, letters, f.takes);
  if (f.absent == "required") line += "; required";
  if (!f.absent.empty() && f.absent != "required") line += fmt::format("; default {}", f.absent);
  if (!f.note.empty()) line += fmt::format("; {}", f.note);
  return line + "\n";
}

bool is_same(const Field& a, const Field& b) {
  return a.name == b.name && a.takes == b.takes && a.absent == b.absent && a.note == b.note;
}

}  // namespace

const FieldTable& request_fields() {
  static const FieldTable fields = [] {
    FieldTable out;
    add_prompts(out);
    add_sampling(out);
    add_ends(out);
    add_shapes(out);
    add_chat(out);
    add_constraints(out);
    add_labels(out);
    add_unsupported(out);
    return out;
  }();
  return fields;
}

const FieldTable& fields_of(FieldPlace place) {
  static const FieldTable chat = chosen_fields(kInChat);
  static const FieldTable completions = chosen_fields(kInCompletions);
  static const FieldTable generate = chosen_fields(kInGenerate);
  static const FieldTable sampling = chosen_fields(kInSampling);
  switch (place) {
    case kInChat:
      return chat;
    case kInCompletions:
      return completions;
    case kInGenerate:
      return generate;
    case kInSampling:
      return sampling;
  }
  return chat;
}

Field chat_field(std::string_view name) {
  const FieldTable& chat = fields_of(kInChat);
  const auto at =
      std::find_if(chat.begin(), chat.end(), [&](const Field& f) { return f.name == name; });
  LATHE_CHECK(at != chat.end(), "chat has no such field");
  return *at;
}

std::optional<ApiError> read_fields(const Json& object, const FieldTable& fields,
                                    const std::string& prefix, const FieldLimits& limits,
                                    ApiRequest& out) {
  for (const Field& f : fields) {
    const auto value = object.find(std::string(f.name));
    if (value == object.end() || value->is_null()) continue;
    const std::string path = prefix + std::string(f.name);
    if (auto wrong = f.read(*value, {path, limits}, out)) return wrong;
  }
  for (const auto& item : object.items()) {
    const std::string& name = item.key();
    const bool known =
        std::any_of(fields.begin(), fields.end(), [&](const Field& f) { return f.name == name; });
    if (!known) out.ignored.push_back(prefix + name);
  }
  return std::nullopt;
}

std::optional<ApiError> refuse_ignored(const ApiRequest& request, const FieldTable& fields,
                                       const FieldLimits& limits) {
  if (!limits.strict || request.ignored.empty()) return std::nullopt;
  return bad_field(request.ignored[0], "a known name", "an unknown one",
                   nearest_field(fields, request.ignored[0]));
}

std::string nearest_field(const FieldTable& fields, std::string_view name) {
  if (name.size() > 64) return "";
  std::string_view best;
  std::size_t least = 3;  // names further away are not suggested
  for (const Field& f : fields) {
    const std::size_t d = edit_distance(name, f.name);
    if (d < least) {
      least = d;
      best = f.name;
    }
  }
  return best.empty() ? "" : fmt::format("did you mean {}?", best);
}

std::string describe_fields(std::span<const RouteFields> more) {
  std::string out = "C chat, T completions, G generate, S its sampling_params";
  for (const RouteFields& route : more) out += fmt::format(", {} {}", route.letter, route.what);
  out += "\n\n";
  const auto letters = [&](const Field& field, bool first) {
    std::string text = first ? places_text(field.places) : "    ";
    for (const RouteFields& route : more) {
      const bool has = std::any_of(route.fields.begin(), route.fields.end(),
                                   [&](const Field& f) { return is_same(f, field); });
      text += has ? route.letter : ' ';
    }
    return text;
  };
  for (const Field& f : request_fields()) out += field_line(f, letters(f, true));
  FieldTable own;  // of the other routes
  for (const RouteFields& route : more) {
    for (const Field& f : route.fields) {
      const auto same = [&](const Field& other) { return is_same(f, other); };
      if (std::any_of(request_fields().begin(), request_fields().end(), same)) continue;
      if (std::any_of(own.begin(), own.end(), same)) continue;
      out += field_line(f, letters(f, false));
      own.push_back(f);
    }
  }
  return out;
}

}  // namespace lathe
