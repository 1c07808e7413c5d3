#include "ops/indexer.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace lathe {

Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) {
  const bool groups = op.tokens_per_key > 1;
  LATHE_CHECK(op.step != nullptr && (groups || std::ssize(op.slots) == op.step->rows * op.k),
              "slots [rows, k]");
  LATHE_CHECK(!groups || op.choice_rows.empty(), "no choices of groups");
  LATHE_CHECK(op.choice_rows.empty() || std::ssize(op.choice_rows) == op.step->rows,
              "a choice for every row");
  return ops.backend->select_keys(ops, op);
}

}  // namespace lathe
