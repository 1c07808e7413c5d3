// Request: the engine's input, and the events that it returns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/enum.h"
#include "base/result.h"
#include "engine/request/token_constraint.h"
#include "ops/sampling.h"

namespace lathe {

/// Numbers requests in order of acceptance, from 1.
struct RequestId {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const RequestId&) const = default;
};

struct Request {
  std::vector<std::int32_t> prompt;  // tokens in [0, vocab), at least one
  SamplingParams sampling;
  // Forces the answer to these tokens, to score a given text by EngineOptions::on_logits; the
  // answer ends after the last of them. Empty: tokens are sampled.
  std::vector<std::int32_t> forced = {};
  // An earlier request with the same prompt. With a prefix cache, this one is admitted only after
  // that prompt is cached, so that the prompt is computed once.
  RequestId sibling_of = {};
  // Only requests with an equal salt share the prefix cache.
  std::uint64_t cache_salt = 0;
  // Who asks. Clients share steps and places evenly (docs/engine.md, E2).
  std::uint64_t client = 0;
  // Lower ones come first; not 0 only with EngineOptions::priorities.
  std::int32_t priority = 0;
  // Returns log-probabilities of the prompt from this token on, with the likeliest tokens as for
  // the answer (sampling.logprobs must be set). Token 0 has none. Unset: none are returned. Their
  // rows are always computed, even if the prefix cache has them.
  std::optional<std::int32_t> prompt_logprobs_from = std::nullopt;
  // Computes and scores the prompt, which may fill the context: the answer has one token, which no
  // step reads, so it needs no room. sampling.max_tokens is not read.
  bool only_prompt = false;
  // Limits the answer's tokens; not shared with other requests. Stop tokens are allowed only where
  // it lets the answer end. Null: no limits.
  std::shared_ptr<TokenConstraint> constraint = nullptr;
};

/// - waiting: not admitted yet
/// - running: has pages, and rows in steps
/// - preempted: lost its pages to an older request and waits to be admitted again
/// - finished: its answer has ended
#define LATHE_REQUEST_STATES(X) X(waiting) X(running) X(preempted) X(finished)
LATHE_ENUM(RequestState, LATHE_REQUEST_STATES)

/// stop       a stop token, which is the answer's last, or a stop string that the caller found
/// complete   the request's constraint allows nothing after the last token
/// length     max_tokens tokens
/// cancelled  cancelled by the caller
/// error      the model gave NaN or Inf, or the constraint allows no token
#define LATHE_FINISH_REASONS(X) X(stop) X(complete) X(length) X(cancelled) X(error)
LATHE_ENUM(FinishReason, LATHE_FINISH_REASONS)

struct TokenEvent {
  RequestId request;
  std::int64_t position = 0;  // in the answer, from 0
  SampledToken sampled;
  // With the answer's first token: log-probabilities of prompt tokens, from max(1,
  // prompt_logprobs_from).
  std::vector<SampledToken> prompt_logprobs = {};
};

struct Started {
  RequestId request;
  std::int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache
};

struct Finished {
  RequestId request;
  FinishReason reason = FinishReason::stop;
  std::optional<Error> error;  // with FinishReason::error
  std::int64_t prompt_tokens = 0;
  std::int64_t answer_tokens = 0;
  std::int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache at admission
  std::int64_t preemptions = 0;
};

/// The result of one step.
struct StepReport {
  std::int64_t step = 0;           // number of the forward pass, from 1; unchanged without rows
  std::vector<TokenEvent> tokens;  // decoding requests first; in order for each request
  std::vector<Finished> finished;  // requests cancelled since the last step come first
  std::vector<Started> started;    // admitted for the first time
  std::int64_t prefill_rows = 0;
  std::int64_t decode_rows = 0;  // one per decoding request
  std::int64_t drafted = 0;      // rows of drafts, besides those
  std::int64_t accepted = 0;     // accepted drafts
  std::int64_t admitted = 0;
  std::int64_t cached_tokens = 0;  // tokens that admitted requests found in the prefix cache
  std::int64_t preemptions = 0;
};

}  // namespace lathe
