#include "tools/flags/command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace lathe {

bool stdout_takes_color() {
  return isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
}

int refuse(const Error& error) {
  print_err(fmt::format("lathe: {}\n", error.message()));
  return kExitRefused;
}

}  // namespace lathe
