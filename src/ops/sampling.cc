#include "ops/sampling.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace lathe {

void sample(const OpsContext& ops, std::span<const SampleArgs> rows,
            std::span<std::optional<SampledToken>> out) {
  LATHE_CHECK(rows.size() == out.size(), "a result for every row");
  for (const SampleArgs& row : rows) {
    LATHE_CHECK(!row.logits.empty() && row.params != nullptr, "logits and parameters");
    LATHE_CHECK(row.logits.size() == rows[0].logits.size(), "rows of one vocabulary");
    LATHE_CHECK(row.ruled_out.size() < row.logits.size(), "a token that may be drawn");
  }
  ops.backend->sample(ops, rows, out);
}

}  // namespace lathe
