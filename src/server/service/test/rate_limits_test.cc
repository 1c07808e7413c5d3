// What separates clients: limits of each key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"
#include "server/service/rate_limits.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;

const Caller kFirst{false, 0}, kSecond{false, 1}, kAdmin{true, std::nullopt};

RateLimits::Clock::time_point at(double seconds) {
  return RateLimits::Clock::time_point(std::chrono::duration_cast<RateLimits::Clock::duration>(
      std::chrono::duration<double>(seconds)));
}

TEST(RateLimits, RequestsComeBackEvenly) {
  RateLimits limits(6, 0);  // one in ten seconds
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(limits.take(kFirst, 10, at(0)));
  const auto refused = limits.take(kFirst, 10, at(4));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  EXPECT_EQ(refused.error().retry_after, 6);
  EXPECT_TRUE(limits.take(kSecond, 10, at(4)));
  EXPECT_TRUE(limits.take(kAdmin, 10, at(4)));
  EXPECT_FALSE(limits.take(kFirst, 10, at(9.9)));
  EXPECT_TRUE(limits.take(kFirst, 10, at(10.1)));
  EXPECT_FALSE(limits.take(kFirst, 10, at(10.2)));
}

TEST(RateLimits, UnusedTokensAreReturned) {
  RateLimits limits(0, 600);  // ten a second
  EXPECT_EQ(*limits.take(kFirst, 400, at(0)), 400);
  EXPECT_EQ(limits.take(kFirst, 300, at(0)).error().retry_after, 10);
  limits.give_back(kFirst, 100);
  EXPECT_TRUE(limits.take(kFirst, 300, at(0)));
  // More than a minute's tokens: once all are there.
  EXPECT_FALSE(limits.take(kFirst, 5000, at(59)));
  EXPECT_EQ(*limits.take(kFirst, 5000, at(60)), 5000);
}

TEST(RateLimits, ARequestBeyondTheAllowanceLeavesADebt) {
  RateLimits limits(0, 600);  // ten a second
  EXPECT_TRUE(limits.take(kFirst, 6000, at(0)));
  EXPECT_EQ(limits.take(kFirst, 10, at(0)).error().retry_after, 541);
  EXPECT_EQ(limits.take(kFirst, 6000, at(0)).error().retry_after, 600);
  EXPECT_TRUE(limits.take(kSecond, 10, at(0)));
  EXPECT_FALSE(limits.take(kFirst, 10, at(540.9)));
  EXPECT_TRUE(limits.take(kFirst, 10, at(541.1)));
  EXPECT_FALSE(limits.take(kFirst, 10, at(541.1)));
  // What the long one did not use comes back.
  limits.give_back(kFirst, 100);
  EXPECT_TRUE(limits.take(kFirst, 100, at(541.1)));
  EXPECT_FALSE(limits.take(kFirst, 10, at(541.1)));
}

TEST(RateLimits, ALongAnswerIsChargedWhole) {
  ScriptedOptions options;
  options.server.api_keys = {"one"};
  options.server.tokens_per_minute = 100;
  ScriptedServer s(std::move(options));
  const auto answer_to = [&](int tokens) {
    return ask(s.port(), "POST", "/v1/completions", completion("a", tokens),
               "Authorization: Bearer one\r\n");
  };
  const TestAnswer first = answer_to(1000);
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.json()["usage"]["completion_tokens"], 1000);
  const TestAnswer refused = answer_to(1);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: "));
}

TEST(RateLimits, LimitsOfAKeyAre429) {
  ScriptedOptions options;
  options.server.api_keys = {"one", "two"};
  options.server.requests_per_minute = 2;
  options.server.tokens_per_minute = 1000;
  ScriptedServer s(std::move(options));
  const auto answer_to = [&](const std::string& key, int tokens) {
    return ask(s.port(), "POST", "/v1/completions", completion("q", tokens),
               "Authorization: Bearer " + key + "\r\n");
  };
  const TestAnswer first = answer_to("one", 9);
  EXPECT_EQ(first.status, 200);
  EXPECT_THAT(first.head, HasSubstr("x-ratelimit-limit-requests: 2\r\n"));
  EXPECT_THAT(first.head, HasSubstr("x-ratelimit-remaining-requests: 1\r\n"));
  EXPECT_THAT(first.head, HasSubstr("x-ratelimit-remaining-tokens: 990\r\n"));
  EXPECT_EQ(answer_to("one", 9).status, 200);
  const TestAnswer refused = answer_to("one", 9);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: "));
  EXPECT_EQ(refused.json()["error"]["type"], "rate_limit_error");
  EXPECT_EQ(refused.json()["error"]["code"], "rate_limit_exceeded");
  EXPECT_EQ(answer_to("two", 900).status, 200);
  EXPECT_EQ(answer_to("two", 200).json()["error"]["code"], "rate_limit_exceeded");
  // A probe is charged to no key, used up or not.
  for (const char* key : {"one", "two"}) {
    for (int i = 0; i < 3; ++i) {
      const TestAnswer probe = ask(s.port(), "GET", "/health_generate", "",
                                   std::string("Authorization: Bearer ") + key + "\r\n");
      EXPECT_EQ(probe.status, 200);
      EXPECT_THAT(probe.head, testing::Not(HasSubstr("x-ratelimit")));
    }
  }
  EXPECT_EQ(answer_to("two", 9).status, 200);
}

}  // namespace
}  // namespace lathe
