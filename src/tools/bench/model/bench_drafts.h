// lathe bench drafts: decoding with drafts against decoding without, in turns, over the reference
// tasks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/flags/model_flags.h"

namespace lathe {

struct BenchDraftsOptions {
  ModelFlags model;  // its drafter is compared with none
  std::vector<std::string> tasks = {"copy", "retrieval", "arithmetic"};
  std::string task_dir;     // empty: tasks next to the model's folder
  std::int64_t limit = 64;  // items of a task
  std::vector<std::int64_t> batches = {1, 64};
  int repeats = 3;
  bool json = false;
};

/// Runs and prints; returns the exit code. Answers that differ with and without drafts are an
/// error.
int bench_drafts_command(const BenchDraftsOptions& options);

}  // namespace lathe
