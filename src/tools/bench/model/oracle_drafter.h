// OracleDrafter: does another drafter's work, but makes a given share of its guesses right, so that
// a model of random weights shows what drafts gain. It knows the answers from a run without drafts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/draft/drafter.h"

namespace lathe {

class OracleDrafter : public Drafter {
 public:
  /// A guess is right with probability `right`, random by request and place, until one is wrong.
  OracleDrafter(std::unique_ptr<Drafter> inner, double right)
      : inner_(std::move(inner)), right_(right) {}

  /// Turns drafting on or off. While it is off, the inner drafter sees no rows either, and requests
  /// that begin then have no drafts later.
  void turn(bool on) { on_ = on; }
  /// The request's answer, after a prompt of `prompt` tokens.
  void expect(RequestId id, std::int64_t prompt, std::vector<std::int32_t> answer) {
    answers_[id.value] = {prompt, std::move(answer)};
  }
  /// Seconds in the inner drafter since the last call.
  double take_seconds() { return std::exchange(seconds_, 0); }

  void propose(std::span<DraftRequest> requests) override;
  HiddenRows* hidden() override { return inner_->hidden(); }
  Result<void> read(std::span<const ComputedRows> rows) override;
  double cost() const override { return inner_->cost(); }
  void forget(RequestId id) override;

 private:
  struct Answer {
    std::int64_t prompt = 0;
    std::vector<std::int32_t> tokens;
  };
  std::unique_ptr<Drafter> inner_;
  double right_;
  bool on_ = true;
  double seconds_ = 0;
  std::map<std::uint64_t, Answer> answers_;  // by request
};

}  // namespace lathe
