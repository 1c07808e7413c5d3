// Reports what the values of a run lost where the cache stores them at one scale per layer.
#pragma once

#include <string>

#include "engine/runtime.h"

namespace lathe {

/// One line, with the layers that lost much and the way out; nothing where nothing was counted.
std::string describe_stored_values(Runtime& runtime);

}  // namespace lathe
