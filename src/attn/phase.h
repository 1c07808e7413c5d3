// Phase: what a forward step does, and so how many query rows each request has in it. phase_of()
// and side_of() are the only places that decide it.
#pragma once

#include "base/enum.h"

namespace lathe {

/// extend        prefill, in chunks or at once, with or without a cached prefix
/// decode        one row per request
/// verify        all drafted tokens of a request in one step, with a causal mask
/// draft_extend  the draft model computes the accepted tokens
#define LATHE_PHASES(X) X(extend) X(decode) X(verify) X(draft_extend)
LATHE_ENUM(Phase, LATHE_PHASES)

/// The user chooses a kernel for each side.
#define LATHE_SIDES(X) X(prefill) X(decode)
LATHE_ENUM(Side, LATHE_SIDES)

/// What the scheduler put in a batch.
#define LATHE_BATCH_MODES(X) X(idle) X(extend) X(mixed) X(decode) X(target_verify) X(draft_extend)
LATHE_ENUM(BatchMode, LATHE_BATCH_MODES)

/// An idle batch (no rows on this rank) counts as decode, a mix of prefill chunks and decode rows
/// as extend.
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

/// Only extend uses the kernel chosen for prefill. verify and draft_extend use decode's.
constexpr Side side_of(Phase phase) {
  return phase == Phase::extend ? Side::prefill : Side::decode;
}

}  // namespace lathe
