#include "server/service/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "io/text/quote.h"
#include "kernels/philox.h"
#include "ops/sampling_params.h"
#include "server/grammar/think_budget.h"
#include "server/openai/text_offsets.h"
#include "server/service/answer_rules.h"
#include "server/service/call_ids.h"
#include "server/service/chat_checks.h"
#include "server/service/protocol.h"
#include "server/service/render_chat.h"
#include "server/service/request_limits.h"

namespace lathe {
namespace {

// Keeps the last tokens of a prompt that truncate_prompt_tokens finds too long, as vLLM does.
std::optional<ApiError> truncate(const ServedModel& model, const ApiRequest& api,
                                 std::size_t prompt, std::vector<std::int32_t>& tokens) {
  if (!api.truncate_prompt_tokens) return std::nullopt;
  const std::int64_t wanted = *api.truncate_prompt_tokens;
  if (wanted > model.capacity) {
    return bad_field("truncate_prompt_tokens",
                     fmt::format("at most the context's {} tokens", model.capacity),
                     fmt::format("{}", wanted));
  }
  // With -1 the answer keeps room for the tokens that it asks for.
  const std::int64_t answer = api.params(prompt).max_tokens.value_or(1);
  const std::int64_t most =
      wanted == -1 ? std::max<std::int64_t>(1, model.capacity - answer) : wanted;
  if (std::ssize(tokens) > most) tokens.erase(tokens.begin(), tokens.end() - most);
  return std::nullopt;
}

// As offsets_in(), of the text that the ids make.
std::vector<std::int64_t> offsets_of_ids(const std::vector<std::int32_t>& ids,
                                         const Tokenizer& tokenizer, bool skip_special_tokens) {
  TextOffsets offsets(tokenizer.detokenizer(skip_special_tokens), 0);
  std::vector<std::int64_t> out;
  for (const std::int32_t id : ids) out.push_back(offsets.next(id));
  return out;
}

// Refuses tokens that the model has no row for. A tokenizer's added tokens may be among them.
// `ids`: the request gives tokens, not text.
std::optional<ApiError> check_tokens(const ServedModel& model,
                                     const std::vector<std::int32_t>& tokens,
                                     const std::string& path, bool ids) {
  const auto at = std::ranges::find_if(tokens, [&](std::int32_t t) { return t >= model.vocab; });
  if (at == tokens.end()) return std::nullopt;
  if (ids) {
    return bad_field(fmt::format("{}[{}]", path, at - tokens.begin()),
                     fmt::format("a token from 0 to {}", model.vocab - 1), fmt::format("{}", *at));
  }
  return bad_field(path, fmt::format("text of the model's {} tokens", model.vocab),
                   fmt::format("{}, which is {}", quote(model.tokenizer.bytes_of(*at)), *at));
}

std::optional<ApiError> encode_prompts(const ServedModel& model, const ServerOptions& options,
                                       bool special, const std::atomic<bool>* stop,
                                       PreparedRequest& out) {
  ApiRequest& api = out.api;
  const auto add = [&](std::vector<std::int32_t> tokens, std::string text) {
    out.prompts.push_back({std::move(text), std::move(tokens), 0});
    out.prompts.back().count = std::ssize(out.prompts.back().tokens);
    out.prompt_tokens += out.prompts.back().count;
  };
  if (api.is_chat()) {
    auto prompt = encode_chat(api, model, options, special, stop);
    if (!prompt) return prompt.error();
    if (options.fields.strict) {
      if (auto wrong = refuse_unread(prompt->ignored)) return wrong;
    }
    for (const std::string& name : prompt->ignored) {
      api.ignored.push_back(api.sources.of(name));
    }
    if (auto wrong = set_markup(model, prompt->text, out)) return wrong;
    if (prompt->tokens.empty()) return bad_field("messages", "at least one token", "none");
    if (auto wrong = check_tokens(model, prompt->tokens, "messages", /*ids=*/false)) return wrong;
    if (auto wrong = truncate(model, api, 0, prompt->tokens)) return wrong;
    add(std::move(prompt->tokens), "");
    return std::nullopt;
  }
  for (std::size_t i = 0; i < api.prompts.size(); ++i) {
    PromptInput& p = api.prompts[i];
    const std::string path = prompt_path(api, i, p.is_text);
    if (p.is_text) {
      auto tokens = model.tokenizer.encode(p.text, /*add_special_tokens=*/true, {}, stop);
      if (!tokens) return ApiError{400, "tokenizer_error", tokens.error().message(), path};
      p.tokens = std::move(*tokens);
    }
    if (p.tokens.empty()) return bad_field(path, "at least one token", "none");
    if (auto wrong = check_tokens(model, p.tokens, path, !p.is_text)) return wrong;
    const std::size_t count = p.tokens.size();
    if (auto wrong = truncate(model, api, i, p.tokens)) return wrong;
    const bool whole_text = p.is_text && p.tokens.size() == count;
    std::string shown;
    std::vector<std::int64_t> offsets;
    if (api.echo) {
      shown = whole_text ? p.text : model.tokenizer.decode(p.tokens, api.skip_special_tokens);
    }
    if (api.echo && api.logprobs) {
      offsets = whole_text ? offsets_in(p.text, p.tokens, model.tokenizer)
                           : offsets_of_ids(p.tokens, model.tokenizer, api.skip_special_tokens);
    }
    add(std::move(p.tokens), std::move(shown));
    out.prompts.back().offsets = std::move(offsets);
  }
  return std::nullopt;
}

// What leaves tokens out of the answers to all prompts.
std::string tokens_path(const PreparedRequest& request, std::size_t prompt) {
  if (!request.api.allowed_token_ids.empty()) return "allowed_token_ids";
  return request.token_lists != nullptr ? "bad_words"
                                        : params_name(request.api, prompt) + "stop_token_ids";
}

// Bits of the tokens that may write constrained text: allowed, no stop token, and no bad word by
// itself. Empty: all that have text.
std::vector<std::uint32_t> usable_tokens(const ServedModel& model, const PreparedRequest& request,
                                         std::size_t prompt) {
  const bool marks = request.api.params(prompt).constraint->with_marks();
  const grammar::Vocabulary& vocabulary =
      (marks ? model.call_grammars() : *model.grammars).vocabulary();
  std::vector<std::uint32_t> out(static_cast<std::size_t>((model.vocab + 31) / 32), ~0u);
  const auto clear = [&](std::int32_t token) {
    out[static_cast<std::size_t>(token / 32)] &= ~(std::uint32_t{1} << (token % 32));
  };
  if (const auto& lists = request.token_lists) {
    if (!lists->allowed.empty()) out = lists->allowed;
    for (const auto& sequence : lists->bad) {
      if (sequence.size() == 1) clear(sequence[0]);
    }
  }
  for (const std::int32_t t : stop_tokens(request.sampling[prompt], model.eos)) clear(t);
  const bool all = std::ranges::all_of(
      vocabulary.tokens(), [&](std::int32_t token) { return grammar::has_bit(out, token); });
  return all ? std::vector<std::uint32_t>() : out;
}

std::optional<ApiError> compile_grammars(const ServedModel& model, const ServerOptions& options,
                                         const std::atomic<bool>* stop, PreparedRequest& out) {
  grammar::Limits limits;  // its work is that of all prompts, whatever the cache has
  limits.stop = stop;
  for (std::size_t i = 0; i < out.prompts.size(); ++i) {
    const auto& source = out.api.params(i).constraint;
    out.grammars.emplace_back();
    if (!source) continue;
    if (model.grammars == nullptr) {
      return ApiError{400, "unsupported_field",
                      source->path + ": wanted none with --grammar-backend none, got some",
                      source->path};
    }
    grammar::Source limited = *source;
    limited.tokens = usable_tokens(model, out, i);
    limited.tokens_path = tokens_path(out, i);
    limited.lenient = options.lenient_tool_schemas && !limited.tools.empty();
    grammar::Cache& cache = limited.with_marks() ? model.call_grammars() : *model.grammars;
    auto made = cache.get(limited, limits);
    if (!made) {
      const Error& e = made.error();
      if (e.field == grammar::kAllConstraints) return ApiError{503, "queue_full", e.message(), ""};
      const bool value = e.code == ErrorCode::malformed || e.field == limited.tokens_path;
      return ApiError{400, value ? "invalid_value" : "unsupported_schema", e.message(), e.field};
    }
    const bool fresh = std::ranges::find(out.grammars, *made) == out.grammars.end();
    if (fresh) limits.work -= (*made)->work();
    if (limits.work < 0) {
      return ApiError{400, "unsupported_schema", grammar::too_much_work(source->path).message(),
                      source->path};
    }
    for (const std::string& name : (*made)->ignored(limited)) {
      auto& all = out.api.ignored;
      const std::string own = out.api.sources.of(name);
      if (std::ranges::find(all, own) == all.end()) all.push_back(own);
    }
    out.grammars.back() = std::move(*made);
  }
  return std::nullopt;
}

// A bad word's tokens at the start of a text and after a space. vLLM leaves out the second where
// they are more or fewer than the first.
Result<std::vector<std::vector<std::int32_t>>> tokens_of_word(const Tokenizer& tokenizer,
                                                              std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of(" \t\n\r\f\v"), word.size()));
  std::vector<std::vector<std::int32_t>> out;
  if (word.empty()) return out;
  for (const char* before : {"", " "}) {
    auto tokens = tokenizer.encode(before + std::string(word));
    if (!tokens) return tokens.error();
    if (!tokens->empty() && (out.empty() || *tokens != out[0])) out.push_back(std::move(*tokens));
  }
  return out;
}

// Sets what allowed_token_ids and bad_words say. The sampling parameters are complete.
std::optional<ApiError> set_token_lists(const ServedModel& model, PreparedRequest& out) {
  const ApiRequest& api = out.api;
  if (api.allowed_token_ids.empty() && api.bad_words.empty()) return std::nullopt;
  grammar::TokenLists lists;
  lists.vocab = model.vocab;
  lists.stops = grammar::bits_of(stop_tokens(out.sampling[0], model.eos), model.vocab);
  if (!api.allowed_token_ids.empty()) {
    for (std::size_t i = 0; i < api.allowed_token_ids.size(); ++i) {
      const std::int32_t id = api.allowed_token_ids[i];
      if (id < model.vocab) continue;
      return bad_field(fmt::format("allowed_token_ids[{}]", i),
                       fmt::format("a token from 0 to {}", model.vocab - 1), fmt::format("{}", id));
    }
    lists.allowed = grammar::bits_of(api.allowed_token_ids, model.vocab);
  }
  for (std::size_t i = 0; i < api.bad_words.size(); ++i) {
    auto sequences = tokens_of_word(model.tokenizer, api.bad_words[i]);
    const std::string path = fmt::format("bad_words[{}]", i);
    if (!sequences) return ApiError{400, "tokenizer_error", sequences.error().message(), path};
    if (sequences->empty()) return bad_field(path, "text other than spaces", "none");
    for (auto& tokens : *sequences) {
      // The model cannot write tokens that its own vocabulary lacks.
      if (std::ranges::max(tokens) < model.vocab) lists.bad.push_back(std::move(tokens));
    }
  }
  out.token_lists = std::make_shared<const grammar::TokenLists>(std::move(lists));
  return std::nullopt;
}

// Rejects answers that no token may begin, as the engine would.
std::optional<ApiError> check_first_tokens(const ServedModel& model, const PreparedRequest& out) {
  for (std::size_t i = 0; i < out.prompts.size(); ++i) {
    const auto constraint = make_constraint(out, i);
    if (constraint == nullptr) continue;
    std::vector<std::uint32_t> bits(static_cast<std::size_t>((model.vocab + 31) / 32));
    const auto may_end = constraint->allowed(bits);
    if (!may_end) return bad_field(may_end.error());
    const auto stops = grammar::bits_of(stop_tokens(out.sampling[i], model.eos), model.vocab);
    bool any = false;
    for (std::size_t w = 0; w < bits.size(); ++w) any = any || (bits[w] & ~stops[w]) != 0;
    if (any) continue;
    return bad_field(tokens_path(out, i),
                     "a token that the answer may begin with, and that is no stop token", "none");
  }
  return std::nullopt;
}

// A prompt's parameters, with the model's own where the request gives none.
SamplingParams sampling_of(const ServedModel& model, const ServerOptions& options,
                           const ApiRequest& api, const AnswerParams& params) {
  const GenerationDefaults defaults =
      options.model_sampling_defaults ? model.generation : GenerationDefaults{};
  SamplingParams out = params.sampling;
  out.temperature = params.temperature.value_or(defaults.temperature.value_or(1.0f));
  out.top_p = params.top_p.value_or(defaults.top_p.value_or(1.0f));
  out.top_k = params.top_k.value_or(defaults.top_k.value_or(-1));
  out.min_p = params.min_p.value_or(defaults.min_p.value_or(0.0f));
  out.repetition_penalty =
      params.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0f));
  if (api.logprobs || api.prompt_logprobs) {
    out.logprobs = std::min(tokens_listed(api), model.vocab);
    out.logprob_ids = api.logprob_ids;
  }
  return out;
}

// An error of check_sampling_params(), which has /generate's names, in the route's.
ApiError bad_sampling(const ApiRequest& api, std::size_t prompt, Error wrong) {
  if (api.route != ApiRoute::generate) {
    if (wrong.field == "min_new_tokens") wrong.field = "min_tokens";
    if (wrong.field == "max_new_tokens") wrong.field = length_name(api);
    constexpr std::string_view kLength = "max_new_tokens";
    const std::size_t at = wrong.wanted.find(kLength);
    if (at != std::string::npos) wrong.wanted.replace(at, kLength.size(), length_name(api));
  }
  const bool own =
      wrong.field.starts_with("token_ids_logprob") || wrong.field == "top_logprobs_num";
  if (!own) wrong.field.insert(0, params_name(api, prompt));
  return bad_field(wrong);
}

// What follows the body's own checks. `counts`: nobody generates, so no length is too large.
std::optional<ApiError> complete(const ServedModel& model, const ServerOptions& options,
                                 bool special, bool counts, const std::atomic<bool>* stop,
                                 PreparedRequest& out) {
  out.api.ignored.insert(out.api.ignored.end(), out.api.idle.begin(), out.api.idle.end());
  if (auto wrong = encode_prompts(model, options, special, stop, out)) return wrong;
  if (auto wrong = fit_lists(out.api)) return wrong;
  for (std::size_t i = 0; i < out.prompts.size(); ++i) {
    out.sampling.push_back(sampling_of(model, options, out.api, out.api.params(i)));
  }
  if (!counts) {
    if (auto wrong = fit_lengths(model, options, out)) return wrong;
    if (auto wrong = fit_queue(options, out.api)) return wrong;
  }
  for (std::size_t i = 0; i < out.sampling.size(); ++i) {
    const auto ok = check_sampling_params(out.sampling[i], model.vocab, model.eos);
    if (!ok) return bad_sampling(out.api, i, ok.error());
  }
  if (auto wrong = set_token_lists(model, out)) return wrong;
  if (auto wrong = compile_grammars(model, options, stop, out)) return wrong;
  if (auto wrong = check_first_tokens(model, out)) return wrong;
  return std::nullopt;
}

// Drops what the prompts' tokens and the grammars say, or a long history would stay in memory as
// JSON for as long as its answer.
void drop_input(const ServerOptions& options, PreparedRequest& out) {
  if (out.api.is_chat()) {
    out.earlier_call_ids = earlier_call_ids(out.markup.tools, out.api.messages);
  }
  out.api.constraint.reset();
  for (AnswerParams& params : out.api.each) params.constraint.reset();
  if (options.log_requests >= 3) return;  // shows prompts
  out.api.messages = nullptr;
  out.api.prompts.clear();
}

}  // namespace

std::optional<ApiError> check_model(const std::string& model, const ServerOptions& options) {
  const bool known =
      options.any_model || model.empty() || model == "default" ||
      std::find(options.names.begin(), options.names.end(), model) != options.names.end();
  if (known) return std::nullopt;
  return ApiError{404, "model_not_found",
                  fmt::format("model: wanted {}, got {}; --served-model-name, --any-model",
                              fmt::join(options.names, " or "), model),
                  "model"};
}

std::unique_ptr<TokenConstraint> make_constraint(const PreparedRequest& request,
                                                 std::size_t prompt) {
  std::unique_ptr<TokenConstraint> out;
  if (const auto& made = request.grammars[prompt]) {
    out = std::make_unique<grammar::Matcher>(made, request.think);
  }
  if (request.token_lists != nullptr) {
    out = std::make_unique<grammar::TokenRules>(request.token_lists, std::move(out));
  }
  if (request.think_budget) {
    out = std::make_unique<grammar::ThinkBudget>(*request.think_budget, request.budget_think,
                                                 request.vocab, std::move(out));
  }
  return out;
}

std::uint64_t seed_of_choice(std::uint64_t seed, std::int32_t i) {
  return i == 0 ? seed : random_bits(seed, static_cast<std::uint64_t>(i));
}

Result<PreparedRequest, ApiError> prepare(ApiRoute route, const std::string& body,
                                          const ServedModel& model, const ServerOptions& options,
                                          const std::atomic<bool>* stop) {
  const auto start = std::chrono::steady_clock::now();
  auto api = read_request(route, body, options.fields);
  if (!api) return api.error();
  PreparedRequest out;
  out.api = std::move(*api);
  out.vocab = model.vocab;
  if (out.api.model) {
    if (auto wrong = check_model(*out.api.model, options)) return *wrong;
  }
  if (auto wrong = complete(model, options, /*special=*/false, /*counts=*/false, stop, out)) {
    return out.api.sources.rename(std::move(*wrong));
  }
  drop_input(options, out);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

Result<CountedPrompt, ApiError> count_prompt(ApiRequest request, const ServedModel& model,
                                             const ServerOptions& options, bool add_special_tokens,
                                             const std::atomic<bool>* stop) {
  PreparedRequest out;
  out.api = std::move(request);
  out.vocab = model.vocab;
  if (out.api.model) {
    if (auto wrong = check_model(*out.api.model, options)) return *wrong;
  }
  if (auto wrong = complete(model, options, add_special_tokens, /*counts=*/true, stop, out)) {
    return out.api.sources.rename(std::move(*wrong));
  }
  return CountedPrompt{std::move(out.prompts[0].tokens), std::move(out.api.ignored)};
}

}  // namespace lathe
