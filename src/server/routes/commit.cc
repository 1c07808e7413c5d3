#include "server/routes/commit.h"

namespace lathe {

std::string_view built_commit() { return LATHE_COMMIT; }

}  // namespace lathe
