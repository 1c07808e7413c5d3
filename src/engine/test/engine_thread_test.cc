#include "engine/engine_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "engine/test/fake_model_test_util.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;

Request thread_request(std::int32_t first, std::int32_t max_tokens) {
  Request r;
  for (std::int32_t i = 0; i < 20; ++i) r.prompt.push_back((first + i * 5) % FakeModel::kNanToken);
  r.sampling.temperature = 0;
  r.sampling.max_tokens = max_tokens;
  r.sampling.logit_bias = {{FakeModel::kNanToken, -1000}};
  return r;
}

// Collects an engine thread's events, and waits for them.
class Listener {
 public:
  void operator()(EngineNews news) {
    {
      const std::lock_guard lock(mutex_);
      for (TicketEvent& e : news.events) {
        Answer& a = answers_[e.ticket.value];
        if (e.token) a.tokens.push_back(e.token->token);
        if (e.finished) a.reason = e.finished->reason;
        if (e.refused) refused_[e.ticket.value] = *e.refused;
        if (e.finished || e.refused) ++ended_;
      }
      failed_ = failed_ || news.failed;
      stats_ = news.stats;
    }
    changed_.notify_all();
  }
  void wait_for_ends(std::size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= n; });
  }
  void wait_for_token(std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !answers_[ticket].tokens.empty(); });
  }
  Answer answer(std::uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    return answers_[ticket];
  }
  std::optional<Error> refused(std::uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    const auto at = refused_.find(ticket);
    return at == refused_.end() ? std::nullopt : std::optional(at->second);
  }
  bool failed() {
    const std::lock_guard lock(mutex_);
    return failed_;
  }
  EngineStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Answer> answers_;
  std::map<std::uint64_t, Error> refused_;
  std::size_t ended_ = 0;
  bool failed_ = false;
  EngineStats stats_;
};

struct ThreadScene {
  FakeSetup setup;
  Engine engine = setup.engine();
  Listener listener;
  EngineThread thread{engine, [this](EngineNews& n) { listener(std::move(n)); }};
};

TEST(EngineThread, AnswersComeByTheirTickets) {
  ThreadScene s;
  for (std::uint64_t t = 1; t <= 20; ++t) {
    s.thread.submit({{Ticket{t * 7}, thread_request(static_cast<std::int32_t>(t), 10), {}}});
  }
  s.listener.wait_for_ends(20);
  for (std::uint64_t t = 1; t <= 20; ++t) {
    EXPECT_EQ(
        s.listener.answer(t * 7),
        expected_answer(thread_request(static_cast<std::int32_t>(t), 10), s.engine.capacity()));
  }
  EXPECT_EQ(s.listener.stats().held_pages, 0);
}

TEST(EngineThread, ARefusedRequestIsItsLastEvent) {
  ThreadScene s;
  s.thread.submit(
      {{Ticket{1}, thread_request(1, 100000), {}}, {Ticket{2}, thread_request(2, 3), {}}});
  s.listener.wait_for_ends(2);
  ASSERT_TRUE(s.listener.refused(1));
  EXPECT_THAT(s.listener.refused(1)->message(), HasSubstr("100000 of the answer"));
  EXPECT_FALSE(s.listener.refused(2));
}

// Needs memory that there is not.
struct HugeConstraint final : TokenConstraint {
  Result<bool> allowed(std::span<std::uint32_t>) override { throw std::bad_alloc(); }
  bool accept(std::int32_t) override { return true; }
  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<HugeConstraint>();
  }
};

TEST(EngineThread, E2ARequestWithoutMemoryIsRefused) {
  ThreadScene s;
  std::vector<Submission> both(2);
  both[0] = {Ticket{1}, thread_request(1, 3), {}};
  both[0].request.constraint = std::make_unique<HugeConstraint>();
  both[1] = {Ticket{2}, thread_request(2, 3), {}};
  s.thread.submit(std::move(both));
  s.listener.wait_for_ends(2);
  ASSERT_TRUE(s.listener.refused(1));
  EXPECT_THAT(s.listener.refused(1)->message(), HasSubstr("wanted memory for its tokens"));
  EXPECT_EQ(s.listener.answer(2), expected_answer(thread_request(2, 3), s.engine.capacity()));
  EXPECT_EQ(s.listener.stats().held_pages, 0);
}

TEST(EngineThread, CancellingAtAnyPointEndsOnce) {
  ThreadScene s;
  Request endless = thread_request(3, 400);
  endless.sampling.ignore_eos = true;
  s.thread.submit({{Ticket{1}, endless, {}}, {Ticket{2}, endless, {}}});
  s.thread.cancel({Ticket{2}}, FinishReason::cancelled);  // perhaps before it starts
  s.listener.wait_for_token(1);
  s.thread.cancel({Ticket{1}, Ticket{1}, Ticket{99}}, FinishReason::stop);
  s.listener.wait_for_ends(2);
  EXPECT_EQ(s.listener.answer(1).reason, FinishReason::stop);
  EXPECT_EQ(s.listener.answer(2).reason, FinishReason::cancelled);
  s.thread.cancel({Ticket{1}}, FinishReason::cancelled);  // after the end
  s.thread.submit({{Ticket{3}, thread_request(4, 5), {}}});
  s.listener.wait_for_ends(3);
  EXPECT_EQ(s.listener.answer(3), expected_answer(thread_request(4, 5), s.engine.capacity()));
  EXPECT_EQ(s.listener.stats().held_pages, 0);
}

TEST(EngineThread, AStepThatFailsOnceIsRepeated) {
  ThreadScene s;
  s.setup.model->fail_next = true;
  s.thread.submit({{Ticket{1}, thread_request(1, 5), {}}});
  s.listener.wait_for_ends(1);
  EXPECT_EQ(s.listener.answer(1), expected_answer(thread_request(1, 5), s.engine.capacity()));
  EXPECT_FALSE(s.listener.failed());
}

TEST(EngineThread, AStepThatFailsTwiceEndsAll) {
  ThreadScene s;
  s.setup.model->fail_next = true;
  s.setup.model->fail_late = true;
  s.thread.submit({{Ticket{1}, thread_request(1, 5), {}}, {Ticket{2}, thread_request(2, 5), {}}});
  s.listener.wait_for_ends(2);
  EXPECT_TRUE(s.listener.refused(1) && s.listener.refused(2));
  EXPECT_TRUE(s.listener.failed());
  s.thread.submit({{Ticket{3}, thread_request(3, 5), {}}});
  s.listener.wait_for_ends(3);
  EXPECT_TRUE(s.listener.refused(3));
}

TEST(EngineThread, AnIdleEngineHasItsPrefixCacheEmptied) {
  ThreadScene s;
  s.thread.submit({{Ticket{1}, thread_request(1, 5), {}}});
  s.listener.wait_for_ends(1);
  EXPECT_GT(s.listener.stats().prefix_cache_tokens, 0);
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  s.thread.flush_prefix_cache([&](EngineStats) {
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
  lock.unlock();
  s.thread.submit({{Ticket{2}, thread_request(1, 5), {}}});
  s.listener.wait_for_ends(2);
  EXPECT_EQ(s.engine.stats().cached_tokens, 0);
}

// A request waits until its sibling's prompt is in the prefix cache, and then computes one row.
TEST(EngineThread, SiblingsComputeTheirPromptOnce) {
  ThreadScene s;
  std::vector<Submission> all;
  Request r = thread_request(1, 1);
  while (r.prompt.size() < 200) r.prompt.push_back(3);
  for (std::uint64_t t = 1; t <= 8; ++t) all.push_back({Ticket{t}, r, Ticket{t > 1 ? 1u : 0u}});
  s.thread.submit(all);
  s.listener.wait_for_ends(8);
  EXPECT_LT(s.listener.stats().prefill_rows, 200 + 7 * 5);
  for (std::uint64_t t = 2; t <= 8; ++t) EXPECT_EQ(s.listener.answer(t), s.listener.answer(1));
}

}  // namespace
}  // namespace lathe
