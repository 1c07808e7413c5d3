// The commit that the server was built from. Its file alone is compiled again after each.
#pragma once

#include <string_view>

namespace lathe {

/// Empty: not built from a repository.
std::string_view built_commit();

}  // namespace lathe
