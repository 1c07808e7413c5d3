#include "io/tokenizer/pretokenizer.h"

#include <string>

namespace lathe {
namespace {

// Joins the parts of a text according to the behaviour, holding back one that may still grow. With
// an inverted pattern, adjacent parts may both be non-matches.
template <class Next>
class Joiner {
 public:
  Joiner(SplitBehavior behavior, const Next& next) : behavior_(behavior), next_(next) {}

  void part(std::size_t begin, std::size_t end, bool is_match) {
    switch (behavior_) {
      case SplitBehavior::Removed:
        if (!is_match) next_(begin, end);
        return;
      case SplitBehavior::Isolated:
        next_(begin, end);
        return;
      case SplitBehavior::MergedWithPrevious:
        hold(begin, end, is_match && !last_match_);
        break;
      case SplitBehavior::MergedWithNext:
        // A held match joins this part; any other held part is complete.
        hold(begin, end, last_match_ && !is_match);
        break;
      case SplitBehavior::Contiguous:
        hold(begin, end, is_match == last_match_);
        break;
    }
    last_match_ = is_match;
  }
  void finish() {
    if (held_) next_(begin_, end_);
  }

 private:
  void hold(std::size_t begin, std::size_t end, bool join) {
    if (!held_ || !join) {
      finish();
      begin_ = begin;
    }
    held_ = true;
    end_ = end;
  }

  SplitBehavior behavior_;
  const Next& next_;
  bool held_ = false;
  bool last_match_ = false;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace

void PreTokenizer::run(std::size_t at, std::string_view text, bool first, Matches& matches,
                       const Emit& emit) const {
  if (text.empty()) return;
  if (at == steps_.size()) return emit(text);
  const Step& step = steps_[at];
  std::string changed;
  if (!step.space.empty()) {
    for (const char c : text) c == ' ' ? changed.append(step.space) : changed.append(1, c);
    text = changed;
  }
  if (!text.starts_with(step.prefix) && (first || !step.first_only)) {
    changed = step.prefix + std::string(text);
    text = changed;
  }
  if (!step.regex) return run(at + 1, text, first, matches, emit);
  const auto next = [&](std::size_t begin, std::size_t end) {
    run(at + 1, text.substr(begin, end - begin), first && begin == 0, matches, emit);
  };
  Joiner joiner(step.behavior, next);
  for_each_part(*step.regex, text, matches[at],
                [&](std::size_t begin, std::size_t end, bool is_match) {
                  joiner.part(begin, end, is_match != step.invert);
                });
  joiner.finish();
}

}  // namespace lathe
