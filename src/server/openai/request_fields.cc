// The table of request fields.
#include <limits>

#include "server/openai/constraint_fields.h"
#include "server/openai/fields.h"
#include "server/openai/request_readers.h"

namespace lathe {
namespace {

constexpr double kAnyNumber = std::numeric_limits<float>::max();
constexpr std::size_t kMostStops = 32;
constexpr std::size_t kMostStopBytes = 1024;
constexpr std::size_t kMostBadWords = 256;
constexpr std::size_t kMostIdBytes = 512;
constexpr std::size_t kMostSaltBytes = 256;
constexpr unsigned kOpenAi = kInChat | kInCompletions;
constexpr unsigned kSamples = kOpenAi | kInSampling;
constexpr unsigned kAll = kOpenAi | kInGenerate;

Field field(std::string_view name, unsigned places, Reader reader, std::string_view absent,
            std::string_view note) {
  return {name, places, std::move(reader.takes), absent, note, std::move(reader.read)};
}

void add_prompts(std::vector<Field>& out) {
  out.push_back(
      field("model", kAll,
            string(kMostModelBytes, [](ApiRequest& r, std::string s) { r.model = std::move(s); }),
            "the first", "a name that the server was given; \"default\" is the first"));
  out.push_back(field("messages", kInChat, messages_reader(), "required",
                      "roles system, developer, user, assistant, tool"));
  out.push_back(field("prompt", kInCompletions, prompt_reader(true, true), "required", ""));
  out.push_back(field("text", kInGenerate, prompt_reader(true, false), "", "this or input_ids"));
  out.push_back(field("input_ids", kInGenerate, prompt_reader(false, true), "", "this or text"));
  out.push_back(
      field("sampling_params", kInGenerate, sampling_params_reader(), "{}", "the fields under S"));
  out.push_back(field("truncate_prompt_tokens", kOpenAi, truncate_reader(), "none",
                      "keeps the last tokens of a longer prompt; -1: as many as fit"));
}

void add_sampling(std::vector<Field>& out) {
  const auto max_tokens = [](std::int64_t least) {
    return integer(least, kMostInt, [](ApiRequest& r, std::int64_t i) {
      r.max_tokens = static_cast<std::int32_t>(i);
    });
  };
  out.push_back(field("max_tokens", kInChat, max_tokens(1), "rest of context", ""));
  out.push_back(field("max_completion_tokens", kInChat, max_tokens(1), "max_tokens",
                      "takes precedence over max_tokens"));
  out.push_back(field("max_tokens", kInCompletions, max_tokens(0), "16", "0 only with echo"));
  out.push_back(field("max_new_tokens", kInSampling, max_tokens(0), "128",
                      "0: only the prompt's log-probabilities"));
  out.push_back(field("temperature", kSamples,
                      number({0, kAnyNumber}, [](ApiRequest& r, float f) { r.temperature = f; }),
                      "model's, 1", "0 takes the most likely token"));
  out.push_back(field("top_p", kSamples,
                      number({0, 1, true}, [](ApiRequest& r, float f) { r.top_p = f; }),
                      "model's, 1", ""));
  out.push_back(field("top_k", kSamples,
                      integer(-1, kMostInt,
                              [](ApiRequest& r, std::int64_t i) {
                                r.top_k = i == 0 ? -1 : static_cast<std::int32_t>(i);
                              }),
                      "model's, -1", "-1 and 0: all"));
  out.push_back(field("min_p", kSamples,
                      number({0, 1}, [](ApiRequest& r, float f) { r.min_p = f; }), "model's, 0",
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
  out.push_back(
      field("logit_bias", kSamples, logit_bias_reader(), "none", "ids of the vocabulary"));
  out.push_back(field("seed", kOpenAi, seed_reader(), "the server's",
                      "-1: the server's; choice i of a prompt has a seed made of it and i"));
  out.push_back(
      field("sampling_seed", kInSampling, seed_reader(), "the server's", "-1: the server's"));
  out.push_back(field("n", kSamples,
                      limited("an integer from 1 to --max-n", 1, &FieldLimits::max_n, "--max-n",
                              [](ApiRequest& r, std::int32_t i) { r.n = i; }),
                      "1", "choice i of prompt p has index p * n + i"));
  out.push_back(field(
      "best_of", kInCompletions,
      integer(1, kMostInt,
              [](ApiRequest& r, std::int64_t i) { r.best_of = static_cast<std::int32_t>(i); }),
      "n", "equal to n"));
  out.push_back(field("min_tokens", kOpenAi,
                      integer(0, kMostInt,
                              [](ApiRequest& r, std::int64_t i) {
                                r.sampling.min_tokens = static_cast<std::int32_t>(i);
                              }),
                      "0", "no end before"));
  out.push_back(field("min_new_tokens", kInSampling,
                      integer(0, kMostInt,
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
  out.push_back(
      field("stream_options", kOpenAi, stream_options_reader(), "{}", "only with stream"));
  out.push_back(field("incremental", kInGenerate,
                      boolean([](ApiRequest& r, bool b) { r.incremental = b; }), "false",
                      "only with stream; parts; otherwise each event has all so far"));
  out.push_back(field("logprobs", kInChat, boolean([](ApiRequest& r, bool b) { r.logprobs = b; }),
                      "false", ""));
  out.push_back(field("logprobs", kInCompletions, text_logprobs_reader(), "none", "true means 1"));
  const auto top = [] {
    return limited("an integer from 0 to --max-logprobs", 0, &FieldLimits::max_logprobs,
                   "--max-logprobs", [](ApiRequest& r, std::int32_t i) { r.top_logprobs = i; });
  };
  out.push_back(field("top_logprobs", kInChat, top(), "0", "only with logprobs"));
  out.push_back(field("return_logprob", kInGenerate,
                      boolean([](ApiRequest& r, bool b) { r.logprobs = b; }), "false", ""));
  out.push_back(field("top_logprobs_num", kInGenerate, top(), "0", "only with return_logprob"));
  out.push_back(field("logprob_start_len", kInGenerate,
                      integer(-1, kMostInt,
                              [](ApiRequest& r, std::int64_t i) {
                                r.logprob_start_len = static_cast<std::int32_t>(i);
                              }),
                      "-1",
                      "only with return_logprob; from this token of the prompt on; -1: only the "
                      "answer's"));
  out.push_back(field("token_ids_logprob", kInGenerate,
                      token_ids([](ApiRequest& r, std::vector<std::int32_t> ids) {
                        r.logprob_ids = std::move(ids);
                      }),
                      "none", "only with return_logprob; also of these tokens, at each position"));
  out.push_back(field("return_text_in_logprobs", kInGenerate,
                      boolean([](ApiRequest& r, bool b) { r.text_in_logprobs = b; }), "false",
                      "only with return_logprob"));
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
                      "only with logprobs; its tokens read token_id:N"));
}

void add_chat(std::vector<Field>& out) {
  out.push_back(
      field("tools", kInChat, tools_reader(), "none", "of a model whose template has tools"));
  out.push_back(
      field("tool_choice", kInChat, tool_choice_reader(), "auto",
            "none: the template does not see them; required, a function: the answer is a call"));
  out.push_back(field("parallel_tool_calls", kInChat,
                      boolean([](ApiRequest& r, bool b) { r.parallel_tool_calls = b; }), "true",
                      "false: the first call ends the answer"));
  out.push_back(field("separate_reasoning", kInChat,
                      boolean([](ApiRequest& r, bool b) { r.separate_reasoning = b; }), "true",
                      "false: reasoning stays in content, marks and all"));
  out.push_back(field("chat_template_kwargs", kInChat, template_kwargs_reader(), "{}",
                      "variables for the chat template"));
  out.push_back(
      field("reasoning_effort", kInChat,
            string(64, [](ApiRequest& r, std::string s) { r.reasoning_effort = std::move(s); }),
            "the template's", "a variable of the template"));
  out.push_back(
      field("verbosity", kInChat,
            string(64, [](ApiRequest& r, const std::string&) { r.idle.emplace_back("verbosity"); }),
            "", "no effect"));
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
  out.push_back(field("allowed_token_ids", kOpenAi, allowed_tokens_reader(), "all",
                      "the answer has no others; an end token must be among them to end it"));
  const auto bad = strings(kMostBadWords, kMostStopBytes, false,
                           [](ApiRequest& r, std::vector<std::string> s) { r.bad_words = s; });
  out.push_back(field("bad_words", kOpenAi, bad, "none",
                      "texts whose tokens the answer does not have in a row"));
}

void add_labels(std::vector<Field>& out) {
  out.push_back(
      field("rid", kAll, rids_reader(1024, kMostIdBytes), "ours",
            "the client's name for the request, for /abort_request; /generate echoes it"));
  for (const char* name :
       {"request_id", "user", "safety_identifier", "prompt_cache_key", "service_tier"}) {
    out.push_back(field(name, kAll, string(kMostIdBytes, [](ApiRequest&, const std::string&) {}),
                        "", "no effect"));
  }
  out.push_back(field("metadata", kAll, unread(), "", "no effect"));
  out.push_back(field("store", kAll, unread(), "", "no effect: nothing is stored"));
  out.push_back(field("priority", kAll, priority_reader(), "0",
                      "lower ones first; other than 0 with --scheduling-policy priority"));
  out.push_back(
      field("cache_salt", kAll,
            string(
                kMostSaltBytes, [](ApiRequest& r, std::string s) { r.cache_salt = std::move(s); },
                /*empty=*/false),
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

}  // namespace lathe
