// Checks a KeySource against the batch and the problem.
#pragma once

#include <string>

#include "attn/attend.h"

namespace lathe {

/// How a source may name its keys, and what may be checked.
struct SourceRules {
  bool page_table = true;  // it may have a page table
  bool index_list = true;  // it may have index lists
  bool contents = true;    // lengths are in memory that the host can read
  std::int32_t tokens_per_key = 1;
};

/// Errors name the field as "<name>.<field>". The problem's dims, q_indptr and kv_lens must already
/// be checked.
Result<void> check_source(const std::string& name, const KeySource& source, const AttendArgs& args,
                          SourceRules rules);

}  // namespace lathe
