// Attention problems by the short names that people type: what the lathe command and the Python
// module share.
#pragma once

#include <cstdint>
#include <string_view>

#include "attn/problem.h"
#include "base/result.h"

namespace lathe {

/// Dims of a problem that replace the model family's own; 0 keeps them.
struct ProblemOptions {
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;  // gqa
  std::int32_t head_dim = 0;  // gqa
  std::int32_t top_k = 0;
  std::int32_t window = 0;
  std::int32_t compress_ratio = -1;  // v4: 0 is the window alone, below 0 keeps the family's
  bool sink = false;                 // adds sinks; a family that has them keeps them

  bool operator==(const ProblemOptions&) const = default;
};

/// "mla" (DeepSeek V3), "dsa" or "nsa" (V3.2), "v4", "gqa", or the name of a ProblemKind. The
/// result is not checked (check_problem). Errors: an unknown name, listing the known ones.
Result<AttentionProblem> problem_from_name(std::string_view attention,
                                           const ProblemOptions& options = {});

}  // namespace lathe
