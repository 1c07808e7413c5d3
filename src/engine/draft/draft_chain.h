// DraftChain: drafts of one request, drawn one behind the other, each as if those before it were
// tokens of the answer.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sampling.h"

namespace lathe {

struct DraftChain {
  std::vector<std::int32_t> drafts;
  SampleArgs sampling;  // of the next draft

  explicit DraftChain(const SampleArgs& first)
      : sampling(first), answer_(first.answer.begin(), first.answer.end()) {}
  DraftChain(DraftChain&&) = default;  // a copy's `sampling` would point into the original
  DraftChain& operator=(DraftChain&&) = default;
  /// The next one is drawn with the noise of its own place, so it tends to be what the model draws.
  void add(std::int32_t draft) {
    drafts.push_back(draft);
    answer_.push_back(draft);
    sampling.answer = answer_;
    sampling.allowed = {};
  }

 private:
  std::vector<std::int32_t> answer_;  // the request's, then the drafts
};

}  // namespace lathe
