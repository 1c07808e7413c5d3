// Attention problems by the short names of the lathe command and the Python module.
#pragma once

#include <cstdint>
#include <string_view>

#include "attn/problem.h"
#include "base/result.h"

namespace lathe {

/// Values that replace those of the model family; 0 keeps the family's.
struct ProblemOptions {
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;  // gqa
  std::int32_t head_dim = 0;  // gqa
  std::int32_t top_k = 0;
  std::int32_t window = 0;
  std::int32_t compress_ratio = -1;  // v4; 0: the window alone; below 0 keeps the family's
  bool sink = false;                 // true adds attention sinks; false keeps the family's choice

  bool operator==(const ProblemOptions&) const = default;
};

/// "mla" (DeepSeek V3), "dsa" or "nsa" (V3.2), "v4", "gqa", or the name of a ProblemKind. Does not
/// check the result (check_problem() does). Error: an unknown name; it lists the known ones.
Result<AttentionProblem> problem_from_name(std::string_view attention,
                                           const ProblemOptions& options = {});

}  // namespace lathe
