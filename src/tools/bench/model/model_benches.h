// The flags of the benches of whole models.
#pragma once

#include "tools/flags/command.h"

namespace lathe {

/// Adds engine and drafts to `lathe bench`.
void add_model_benches(Command bench, int& exit_code);

}  // namespace lathe
