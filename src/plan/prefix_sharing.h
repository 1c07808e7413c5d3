// Whether a plan's decode steps read shared prefixes once, and what a group of requests must save.
#pragma once

#include <cstdint>
#include <string>

#include "attn/machine.h"
#include "plan/plan.h"
#include "plan/plan_request.h"

namespace lathe {

/// Needs plan.caches and the routes. Off with --disable-cascade-attn and under --batch-invariant,
/// where a decode or verify kernel cannot do it, for heads that have not been measured, and where
/// the rows' parts would exceed kMostPrefixParts. Costs are measured
/// (bench/notes/gqa/02-shared-prefixes.md) and scaled by the machine's peaks.
PrefixSharing prefix_sharing(const Plan& plan, const Machine& machine, const PlanRequest& request);

/// What keeps decode steps from reading shared prefixes once, --disable-cascade-attn apart, in
/// words: "latent attention". Empty: nothing.
std::string what_separates_prefixes(const Plan& plan, const PlanRequest& request);

/// Bytes of the parts of rows that are joined, for steps of up to `requests` requests. 0: off.
std::int64_t prefix_part_bytes(const Plan& plan, std::int64_t requests);
inline constexpr std::int64_t kMostPrefixParts = std::int64_t{512} << 20;

}  // namespace lathe
