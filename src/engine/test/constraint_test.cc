// Constrained answers, with and without drafts: each token is the best allowed one, and the answer
// ends when nothing may follow.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/test_scale.h"
#include "engine/draft/test/draft_test_util.h"
#include "engine/test/fake_model_test_util.h"

namespace lathe {
namespace {

using Tokens = std::vector<std::int32_t>;

// The answer is one of a set of texts.
class OneOf : public TokenConstraint {
 public:
  explicit OneOf(std::set<Tokens> texts) : texts_(std::move(texts)) {}

  Result<bool> allowed(std::span<std::uint32_t> bits) override {
    if (fails_after == std::ssize(so_far_)) {
      return Error{ErrorCode::exhausted, "the test", "an answer", "none", ""};
    }
    std::fill(bits.begin(), bits.end(), 0u);
    for (const std::int32_t t : next()) bits[static_cast<std::size_t>(t / 32)] |= 1u << (t % 32);
    return texts_.contains(so_far_);
  }
  bool accept(std::int32_t token) override {
    if (!next().contains(token)) return false;
    so_far_.push_back(token);
    return true;
  }
  bool may_end_with(std::int32_t /*stop*/) const override { return stops_end; }
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<OneOf>(*this); }
  std::set<std::int32_t> next() const {
    std::set<std::int32_t> out;
    for (const Tokens& t : texts_) {
      if (t.size() > so_far_.size() && std::equal(so_far_.begin(), so_far_.end(), t.begin())) {
        out.insert(t[so_far_.size()]);
      }
    }
    return out;
  }
  bool may_end() const { return texts_.contains(so_far_); }

  std::int64_t fails_after = -1;  // number of tokens
  bool stops_end = true;

 private:
  std::set<Tokens> texts_;
  Tokens so_far_;
};

Request constrained(const OneOf& constraint, std::int32_t max_tokens, bool ignore_eos = false) {
  Request r;
  r.prompt = {1, 12, 23, 34};
  r.sampling.temperature = 0;
  r.sampling.max_tokens = max_tokens;
  r.sampling.ignore_eos = ignore_eos;
  r.constraint = std::make_shared<OneOf>(constraint);
  return r;
}

// The best allowed token at each step, from fake_logits() alone.
Answer expected(const Request& request) {
  OneOf constraint = dynamic_cast<OneOf&>(*request.constraint);
  const bool eos = !request.sampling.ignore_eos;
  Answer out;
  Tokens tokens = request.prompt;
  for (;;) {
    std::set<std::int32_t> may = constraint.next();
    if (eos) may.erase(FakeModel::kEos);
    const bool full = std::ssize(out.tokens) == *request.sampling.max_tokens;
    if (may.empty() && constraint.may_end()) return {out.tokens, FinishReason::complete};
    if (full) return {out.tokens, FinishReason::length};
    if (may.empty()) return {out.tokens, FinishReason::error};
    const bool early = std::ssize(out.tokens) < request.sampling.min_tokens;
    if (eos && constraint.may_end() && constraint.stops_end && !early) may.insert(FakeModel::kEos);
    const std::vector<float> logits = fake_logits(tokens, FakeModel::kVocab);
    const std::int32_t best = *std::max_element(may.begin(), may.end(), [&](auto a, auto b) {
      const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
      return x != y ? x < y : a > b;
    });
    out.tokens.push_back(best);
    tokens.push_back(best);
    if (eos && best == FakeModel::kEos) return {out.tokens, FinishReason::stop};
    constraint.accept(best);
  }
}

struct ConstrainedOutcome {
  Answer answer;
  std::optional<Error> error;
};

ConstrainedOutcome run(Engine& engine, const Request& request) {
  Request own = request;
  own.constraint = request.constraint->clone();
  const auto id = engine.submit(std::move(own));
  EXPECT_TRUE(id) << id.error().message();
  ConstrainedOutcome out;
  for (int i = 0; i < 1000 && !engine.idle(); ++i) {
    const auto report = engine.step();
    EXPECT_TRUE(report);
    for (const TokenEvent& e : report->tokens) out.answer.tokens.push_back(e.sampled.token);
    for (const Finished& f : report->finished) {
      out.answer.reason = f.reason;
      out.error = f.error;
    }
  }
  EXPECT_EQ(engine.stats().held_pages, 0);
  return out;
}

std::set<Tokens> random_texts(std::mt19937& rng) {
  std::set<Tokens> out;
  const auto count = 1 + rng() % 6;
  while (out.size() < count) {
    Tokens t;
    for (auto n = 1 + rng() % 9; n > 0; --n) {
      // Few distinct tokens, so that texts share prefixes; the stop token is among them.
      t.push_back(static_cast<std::int32_t>(rng() % 4 == 0 ? FakeModel::kEos : 20 + rng() % 3));
    }
    out.insert(std::move(t));
  }
  return out;
}

TEST(Constraint, AnswersAreTheBestOfWhatIsAllowed) {
  const std::uint32_t seed = test_seed(11);
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  std::set<FinishReason> seen;
  for (int i = 0; i < 300 * test_scale(); ++i) {
    OneOf constraint(random_texts(rng));
    constraint.stops_end = rng() % 3 != 0;
    Request r = constrained(constraint, 1 + static_cast<int>(rng() % 12), rng() % 3 == 0);
    if (rng() % 3 == 0) r.sampling.min_tokens = std::min(3, *r.sampling.max_tokens);
    FakeSetup setup;
    Engine engine = setup.engine();
    const Answer wanted = expected(r);
    if (wanted.tokens.empty()) {  // no token may begin the answer
      EXPECT_FALSE(engine.submit(r));
      continue;
    }
    const ConstrainedOutcome got = run(engine, r);
    EXPECT_EQ(got.answer, wanted) << i;
    seen.insert(got.answer.reason);
  }
  EXPECT_TRUE(seen.contains(FinishReason::complete));
  EXPECT_TRUE(seen.contains(FinishReason::stop));
  EXPECT_TRUE(seen.contains(FinishReason::length));
  EXPECT_TRUE(seen.contains(FinishReason::error));
}

// The grammar ends inside a burst of correct drafts.
TEST(Constraint, DraftsChangeNoTokenAndNoEnd) {
  const std::uint32_t seed = test_seed(12);
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  std::int64_t accepted = 0;
  for (int i = 0; i < 200 * test_scale(); ++i) {
    const Request r = constrained(OneOf(random_texts(rng)), 1 + static_cast<int>(rng() % 12), true);
    const Answer wanted = expected(r);
    ScriptedDrafter right([&](const DraftRequest&, std::int64_t known) {
      const std::size_t at = static_cast<std::size_t>(known) - r.prompt.size();
      return at < wanted.tokens.size() ? wanted.tokens[at] : 21;
    });
    ScriptedDrafter wild = random_drafter(rng(), FakeModel::kVocab);
    for (ScriptedDrafter* drafter : {&right, &wild}) {
      FakeSetup setup;
      EngineOptions options;
      options.drafter = drafter;
      options.draft_tokens = 1 + static_cast<std::int64_t>(rng() % 8);
      Engine engine = setup.engine(options);
      const ConstrainedOutcome got = run(engine, r);
      EXPECT_EQ(got.answer, wanted) << i;
      accepted += engine.stats().drafts.all_accepted();
    }
  }
  EXPECT_GT(accepted, 200);
}

TEST(Constraint, ThatFailsEndsItsRequestAlone) {
  OneOf constraint({{20, 21, 22, 20}});
  constraint.fails_after = 2;
  FakeSetup setup;
  Engine engine = setup.engine();
  const ConstrainedOutcome got = run(engine, constrained(constraint, 9));
  EXPECT_EQ(got.answer.reason, FinishReason::error);
  EXPECT_EQ(got.answer.tokens, (Tokens{20, 21}));
  constraint.fails_after = -1;
  EXPECT_EQ(run(engine, constrained(constraint, 9)).answer.reason, FinishReason::complete);
}

TEST(Constraint, MayNotComeWithAForcedAnswerOrAllowNothing) {
  FakeSetup setup;
  Engine engine = setup.engine();
  Request r = constrained(OneOf({{20}}), 5);
  r.forced = {20};
  EXPECT_FALSE(engine.submit(r));
  EXPECT_FALSE(engine.submit(constrained(OneOf({Tokens()}), 5)));
}

}  // namespace
}  // namespace lathe
