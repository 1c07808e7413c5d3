// A picture of the tasks' results over every plan.
#pragma once

#include <string>
#include <vector>

#include "tools/eval/eval_plans.h"

namespace lathe {

/// SVG: a line per row with the accuracy of each task as a dot on its 95 % interval, and a bar of
/// its tokens/s.
std::string plans_picture(const std::string& title, const std::vector<PlanRow>& rows);

}  // namespace lathe
