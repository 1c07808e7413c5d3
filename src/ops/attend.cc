#include "ops/attend.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace lathe {

Result<void> attend(const OpsContext& ops, const AttendOp& op) {
  LATHE_CHECK(op.step != nullptr && op.step->route != nullptr, "a planned step with rows");
  return ops.backend->attend(ops, op);
}

}  // namespace lathe
