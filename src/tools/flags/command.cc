#include "tools/flags/command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace lathe {

bool stdout_takes_color() {
  return isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
}

void print_out(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
void print_err(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stderr); }

int refuse(const Error& error) {
  fmt::print(stderr, "lathe: {}\n", error.message());
  return kExitRefused;
}

}  // namespace lathe
