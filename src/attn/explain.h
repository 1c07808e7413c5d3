// Plans and refusals as text that a person reads.
#pragma once

#include <string>
#include <vector>

#include "attn/plan.h"
#include "attn/planner.h"
#include "attn/reason.h"

namespace lathe {

/// One line per cache, phase, and consequence; ends with a newline.
std::string explain(const Plan& plan);

/// "refused: ..." with a line per reason and the way out; ends with a newline.
std::string explain(const Refusal& refusal);

/// What was tried and did not fit, a line per kernel, layout and phase; ends with a newline unless
/// empty.
std::string explain(const std::vector<Rejection>& rejections);

/// "512 MiB", "1.0 GiB", "36,864 B"
std::string human_bytes(std::int64_t bytes);

}  // namespace lathe
