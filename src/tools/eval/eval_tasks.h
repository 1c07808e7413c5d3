// The reference tasks: held-out items with answers that can be marked right or wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/enum.h"
#include "base/result.h"

namespace lathe {

/// - arithmetic: word problems of two to four steps; marked is the number after the last "####"
/// - retrieval: pairs of words scattered over 1 K to 8 K tokens; marked is the value of the pair
/// - copy: a list of words; marked is the whole list
/// - chains: arithmetic of four or five steps, up to one more than the checkpoints were trained on:
///   they get some wrong, so it shows damage that leaves the others at 100 %
#define LATHE_EVAL_TASKS(X) X(arithmetic) X(retrieval) X(copy) X(chains)
LATHE_ENUM(EvalTaskKind, LATHE_EVAL_TASKS)

struct EvalItem {
  std::string prompt;    // the user's message
  std::string response;  // what a perfect model answers
  std::string answer;    // what is marked
  std::int64_t group;    // steps or length; accuracy is reported for each
};

struct EvalTask {
  EvalTaskKind kind = EvalTaskKind::arithmetic;
  std::vector<EvalItem> items;
};

/// The first `limit` items (0: all) of `directory`/<kind>.jsonl.gz. Errors: the file's; the number
/// of a line that is not an item; no items.
Result<EvalTask> read_eval_task(EvalTaskKind kind, const std::string& directory,
                                std::int64_t limit);

/// invalid: the answer contains nothing to mark.
enum class Mark { right, wrong, invalid };
Mark mark_answer(EvalTaskKind kind, const EvalItem& item, const std::string& text);

/// Wilson's interval of a proportion at 95 %.
struct Interval {
  double low = 0;
  double high = 1;
};
Interval wilson_interval(std::int64_t right, std::int64_t items);

}  // namespace lathe
