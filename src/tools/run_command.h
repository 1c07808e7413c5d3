// The lathe command as a function: the program's main() and the Python package call it.
#pragma once

namespace lathe {

/// Runs `lathe ARGUMENTS`; argv[0] is the program's name. Returns the exit code
/// (tools/flags/command.h).
int run_command(int argc, char** argv);

}  // namespace lathe
