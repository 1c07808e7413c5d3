// The flags of the benches of servers.
#pragma once

#include "tools/flags/command.h"

namespace lathe {

/// Adds server and serve to `lathe bench`.
void add_server_benches(Command bench, int& exit_code);

}  // namespace lathe
