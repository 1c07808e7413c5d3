// Flags that change a configuration.
#pragma once

#include "model/config/overrides.h"
#include "tools/flags/command.h"

namespace lathe {

/// Adds --override and --rope-scaling. `overrides` must outlive the app.
void add_override_flags(Command command, ConfigOverrides& overrides);

}  // namespace lathe
