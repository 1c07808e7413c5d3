// Drafters for tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "engine/draft/drafter.h"
#include "kernels/philox.h"

namespace lathe {

/// Drafts by a function that gives the next token from the request and the number of known tokens.
class ScriptedDrafter : public Drafter {
 public:
  using Next = std::function<std::int32_t(const DraftRequest&, std::int64_t known)>;
  explicit ScriptedDrafter(Next next) : next_(std::move(next)) {}
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) {
      for (std::int64_t i = 0; i < r.most; ++i) {
        r.drafts.push_back(next_(r, std::ssize(r.tokens) + i));
      }
      proposed += r.most;
    }
  }
  std::int64_t proposed = 0;

 private:
  Next next_;
};

/// A ScriptedDrafter that reads rows. Requires that it gets every row of a request in order, each
/// with its own hidden state: FakeModel's, which is the token and its position. For host backends.
class ReadingDrafter : public ScriptedDrafter {
 public:
  ReadingDrafter(Next next, Backend& backend, const ModelPlan& plan)
      : ScriptedDrafter(std::move(next)),
        hidden_(HiddenRows::create(backend, 2, HiddenRowSizes::of(plan, kMaxDraftTokens)).value()) {
  }
  HiddenRows* hidden() override { return &hidden_; }
  Result<void> read(std::span<const ComputedRows> computed) override {
    ++reads;
    if (fails && fails()) return Error{ErrorCode::unsupported, "drafter", "to read", "no", ""};
    for (const ComputedRows& r : computed) {
      const auto [at, fresh] = read_.try_emplace(r.id.value, r.first);
      EXPECT_EQ(at->second, r.first) << "request " << r.id.value << " lost rows";
      for (const std::int32_t place : r.hidden) {
        const auto* hidden = reinterpret_cast<const float*>(hidden_.all().row(place));
        EXPECT_EQ(hidden[0], static_cast<float>(r.tokens[static_cast<std::size_t>(at->second)]));
        EXPECT_EQ(hidden[1], static_cast<float>(at->second));
        ++at->second;
        ++rows;
      }
      EXPECT_LT(at->second, std::ssize(r.tokens));
      if (r.most > 0) {
        EXPECT_EQ(at->second + 1, std::ssize(r.tokens)) << "a draft for a known token";
      }
    }
    return {};
  }
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) {
      const auto at = read_.find(r.id.value);
      const bool all = at != read_.end() && at->second + 1 == std::ssize(r.tokens);
      if (all) ScriptedDrafter::propose(std::span(&r, 1));
    }
  }
  void forget(RequestId id) override { read_.erase(id.value); }
  std::function<bool()> fails;
  std::int64_t reads = 0;
  std::int64_t rows = 0;

 private:
  HiddenRows hidden_;
  std::map<std::uint64_t, std::int64_t> read_;  // rows by request
};

/// Random tokens below `vocab`, by request and position.
inline ScriptedDrafter random_drafter(std::uint64_t seed, std::int32_t vocab) {
  return ScriptedDrafter([seed, vocab](const DraftRequest& r, std::int64_t known) {
    const std::uint64_t bits = random_bits(seed + r.id.value, static_cast<std::uint64_t>(known));
    return static_cast<std::int32_t>(bits % static_cast<std::uint64_t>(vocab));
  });
}

}  // namespace lathe
