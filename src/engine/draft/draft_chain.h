// DraftChain: a request's drafts, sampled one after another, each as if the drafts before it were
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
  /// The next draft is sampled with the noise of its own position, as the model's token at that
  /// position will be, so the two tend to be equal.
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
