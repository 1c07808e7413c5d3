// Turns a request's body into what the engine needs. Runs on workers.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/grammar/matcher.h"
#include "server/grammar/token_rules.h"
#include "server/markup/answer_parts.h"
#include "server/openai/answer.h"
#include "server/openai/api_request.h"
#include "server/service/options.h"
#include "server/service/served_model.h"

namespace lathe {

struct PreparedRequest {
  ApiRequest api;
  std::vector<AnswerPrompt> prompts;                        // tokenised
  std::vector<SamplingParams> sampling;                     // [prompts] for a prompt's first choice
  MarkupRules markup;                                       // of chat
  std::vector<std::shared_ptr<grammar::Grammar>> grammars;  // [prompts]; null: any text
  std::shared_ptr<const grammar::TokenLists> token_lists;   // null: no allowed or bad tokens
  std::set<std::string> earlier_call_ids;                   // CallIds'
  grammar::ThinkTokens think;                               // reasoning before constrained text
  std::optional<std::int64_t> think_budget;                 // most tokens of reasoning ...
  grammar::ThinkTokens budget_think;                        // ... between these marks
  std::int32_t vocab = 0;
  std::uint64_t cache_salt = 0;            // Request's
  std::uint64_t client = 0;                // Request's
  std::optional<std::int32_t> score_from;  // log-probabilities of prompt tokens from here on
  std::int64_t prompt_tokens = 0;          // of all prompts
  double seconds = 0;                      // spent here
  /// Whether the answers to a prompt have no tokens: the engine's is dropped.
  bool drops_answer(std::size_t prompt) const { return api.params(prompt).max_tokens == 0; }
};

/// Errors: 400, parse_request()'s; an unknown model (404 model_not_found); messages and templates;
/// tokens outside the vocabulary; a prompt and an answer beyond the capacity
/// (context_length_exceeded); an answer too large to hold; tokens that cannot write what the
/// request's constraint allows. `stop`: once it is set, nobody needs the result, and a long call
/// ends with some error.
Result<PreparedRequest, ApiError> prepare(ApiRoute route, const std::string& body,
                                          const ServedModel& model, const ServerOptions& options,
                                          const std::atomic<bool>* stop = nullptr);

struct CountedPrompt {
  std::vector<std::int32_t> tokens;
  std::vector<std::string> ignored;  // names of what has no effect
};

/// The tokens of the prompt of a request with messages. Errors: prepare()'s, but that a prompt of
/// any length is counted. `add_special_tokens` and `stop`: as of encode_chat().
Result<CountedPrompt, ApiError> count_prompt(ApiRequest request, const ServedModel& model,
                                             const ServerOptions& options, bool add_special_tokens,
                                             const std::atomic<bool>* stop);

/// The constraint on the answers to a prompt, for one of them; null: none.
std::unique_ptr<TokenConstraint> make_constraint(const PreparedRequest& request,
                                                 std::size_t prompt);

/// 404 model_not_found, unless `name` is one of the model's.
std::optional<ApiError> check_model(const std::string& name, const ServerOptions& options);

/// Seed of a prompt's i-th choice; choice 0 has the request's own.
std::uint64_t seed_of_choice(std::uint64_t seed, std::int32_t i);

}  // namespace lathe
