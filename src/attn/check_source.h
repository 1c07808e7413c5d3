// Validation of one KeySource against the batch and the problem.
#pragma once

#include <string>

#include "attn/attend.h"

namespace lathe {

/// How a source may list its keys.
struct SourceRules {
  bool page_table = true;  // a page table, or an index list
  bool index_list = true;
  bool contents = true;  // lengths may be read
  std::int32_t tokens_per_key = 1;
};

/// Errors in fields of `source`, named "<name>.<field>". q_indptr, kv_lens and the problem's dims
/// must have passed their checks.
Result<void> check_source(const std::string& name, const KeySource& source, const AttendArgs& args,
                          SourceRules rules);

}  // namespace lathe
