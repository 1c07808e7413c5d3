// Reports what a run's values lost in a cache with one scale per layer.
#pragma once

#include <string>

#include "engine/runtime.h"

namespace lathe {

/// One line with the layers that lost much, and the way out; empty if nothing was counted.
std::string describe_stored_values(Runtime& runtime);

}  // namespace lathe
