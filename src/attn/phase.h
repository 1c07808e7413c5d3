// Phase: what a forward step does to the cache and how many query rows each request brings.
// Everything that depends on it asks phase_of() and side_of(); nothing decides it a second time.
#pragma once

#include "base/enum.h"

namespace lathe {

/// extend        prefill, chunked or one-shot, with or without a prefix
/// decode        one row per request
/// verify        a request's drafted tokens at once, causal among themselves
/// draft_extend  the draft model catches up with the accepted tokens
#define LATHE_PHASES(X) X(extend) X(decode) X(verify) X(draft_extend)
LATHE_ENUM(Phase, LATHE_PHASES)

/// The two sides that a user can choose a kernel for.
#define LATHE_SIDES(X) X(prefill) X(decode)
LATHE_ENUM(Side, LATHE_SIDES)

/// What the scheduler put into a batch.
#define LATHE_BATCH_MODES(X) X(idle) X(extend) X(mixed) X(decode) X(target_verify) X(draft_extend)
LATHE_ENUM(BatchMode, LATHE_BATCH_MODES)

/// An idle batch (no rows on this rank) counts as decode; a batch that mixes prefill chunks with
/// decode rows counts as extend.
constexpr Phase phase_of(BatchMode mode) {
  switch (mode) {
    case BatchMode::extend:
    case BatchMode::mixed:
      return Phase::extend;
    case BatchMode::target_verify:
      return Phase::verify;
    case BatchMode::draft_extend:
      return Phase::draft_extend;
    case BatchMode::idle:
    case BatchMode::decode:
      break;
  }
  return Phase::decode;
}

/// Only extend uses the prefill choice; verify and draft_extend run what decode runs.
constexpr Side side_of(Phase phase) {
  return phase == Phase::extend ? Side::prefill : Side::decode;
}

}  // namespace lathe
