// CallPart: which part of a GPU call to run when the caller owns the workspace.
#pragma once

namespace lathe {

/// schedule   make the schedule of a step's lengths in the workspace
/// attention  attend with the schedule that is in the workspace
/// both       schedule, then attention
enum class CallPart { both, schedule, attention };

}  // namespace lathe
