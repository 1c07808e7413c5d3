#include "ops/indexer.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace lathe {

Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) {
  LATHE_CHECK(op.step != nullptr && std::ssize(op.slots) == op.step->rows * op.k,
              "slots [rows, k]");
  return ops.backend->select_keys(ops, op);
}

}  // namespace lathe
