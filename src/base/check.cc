#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace lathe {

void check_failed(const char* file, int line, const char* condition, std::string_view text) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s (%.*s)\n", file, line, condition,
               static_cast<int>(text.size()), text.data());
  std::abort();
}

}  // namespace lathe
