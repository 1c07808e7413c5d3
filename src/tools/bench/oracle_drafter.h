// OracleDrafter: another drafter's work with guesses that are right as often as asked, so that a
// model of random weights shows what drafts gain. It knows the answers from a run without drafts.
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
  /// A guess is right with probability `right`, drawn by request and place, until one is wrong.
  OracleDrafter(std::unique_ptr<Drafter> inner, double right)
      : inner_(std::move(inner)), right_(right) {}

  /// Whether it drafts; while it does not, the drafter below is spared all rows, too, and requests
  /// that began meanwhile have no drafts later.
  void turn(bool on) { on_ = on; }
  /// What the request will answer after a prompt of so many tokens.
  void expect(RequestId id, std::int64_t prompt, std::vector<std::int32_t> answer) {
    answers_[id.value] = {prompt, std::move(answer)};
  }
  /// Seconds in the drafter below since the last call.
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
