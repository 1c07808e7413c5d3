// Clients that leave: their requests end before the next step and free their pages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <random>

#include "base/test_scale.h"
#include "server/scripted/test/http_client_test_util.h"
#include "server/scripted/test/step_gate_test_util.h"

namespace lathe {
namespace {

// The current step ends and at most one more is counted.
void expect_ended(GatedServer& s, double aborted) {
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_aborted_requests_total") == aborted; }));
  const std::size_t begun = s.gate.begun();
  s.gate.open();
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_num_held_pages") == 0; }));
  EXPECT_LE(s.gate.begun(), begun + 1);
  EXPECT_ALIVE(s);
}

TEST(Leaving, ARequestUnderWayEndsBeforeTheNextStep) {
  for (const bool stream : {true, false}) {
    for (const bool half : {true, false}) {
      GatedServer s;
      TestConnection c(s.port());
      c.send(request_text("POST", "/v1/completions",
                          completion("a", 1000, fmt::format(R"(,"stream":{})", stream))));
      s.gate.pass(3);
      s.gate.wait_begun(4);
      if (stream) {
        EXPECT_THAT(c.read_until(" w35"), testing::HasSubstr(" w35"));
      }
      if (half) {
        c.close_sending();
      } else {
        c.close();
      }
      expect_ended(s, 1);
    }
  }
}

// Bytes behind the request, of a pipeline or of nothing, hide neither kind of leaving.
TEST(Leaving, E6PipelinedBytesDoNotHideIt) {
  for (const bool half : {true, false}) {
    for (const std::size_t more : {20'000, 40'000, 1'000'000}) {
      GatedServer s;
      TestConnection c(s.port());
      c.send(request_text("POST", "/v1/completions", completion("a", 1000)));
      s.gate.pass(3);
      s.gate.wait_begun(4);
      EXPECT_TRUE(c.send(std::string(more, '\r')));
      if (half) {
        c.close_sending();
      } else {
        c.close();
      }
      expect_ended(s, 1);
    }
  }
}

TEST(Leaving, AllPromptsAndChoicesEnd) {
  GatedServer s;
  TestConnection c(s.port());
  c.send(request_text("POST", "/v1/completions",
                      R"({"prompt":["a","b","c"],"n":4,"max_tokens":1000,"ignore_eos":true})"));
  s.gate.pass(4);
  s.gate.wait_begun(5);
  EXPECT_EQ(s.gate.rows_of(4), 12);
  c.close();
  expect_ended(s, 1);
}

TEST(Leaving, AQueuedRequestIsNeverAdmitted) {
  ScriptedOptions options;
  options.max_running_requests = 1;
  GatedServer s(std::move(options));
  TestConnection first(s.port()), second(s.port());
  first.send(request_text("POST", "/v1/completions", completion("a", 3)));
  s.gate.wait_begun(1);
  second.send(request_text("POST", "/v1/completions", completion("bbbb", 3)));
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_queued_tokens") == 5; }));
  second.close();
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_aborted_requests_total") == 1; }));
  s.gate.open();
  EXPECT_THAT(first.read_answer(), testing::HasSubstr(scripted_text("a", 3)));
  EXPECT_EQ(metric(s.port(), "lathe_prompt_tokens_total"), 1);
  EXPECT_ALIVE(s);
}

// While one worker reads a long body, a client that leaves is gone before the engine sees its
// request.
TEST(Leaving, InAWorkerARequestIsNotSubmitted) {
  ScriptedOptions options;
  options.server.worker_threads = 1;
  options.server.max_queued_requests = 2;
  GatedServer s(std::move(options));
  TestConnection first(s.port()), slow(s.port()), gone(s.port());
  first.send(request_text("POST", "/v1/completions", completion("a", 1)));
  s.gate.wait_begun(1);
  slow.send(request_text("POST", "/v1/completions", completion(std::string(8 << 20, 'a'), 3)));
  // The first one waits for its token, the second is with the worker.
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 503; }));
  s.gate.open();
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  gone.send(request_text("POST", "/v1/completions", completion("b", 3)));
  gone.close();
  EXPECT_EQ(read_test_answer(slow.read_answer()).json()["error"]["code"],
            "context_length_exceeded");
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_aborted_requests_total") == 1; }));
  EXPECT_EQ(metric(s.port(), "lathe_generation_tokens_total"), 1);  // the first one's
  EXPECT_ALIVE(s);
}

// A signal answers what workers hold at once: of three requests the worker reads one.
void end_jobs_by_a_signal() {
  ScriptedOptions options;
  options.server.worker_threads = 1;
  options.server.max_queued_requests = 3;
  GatedServer s(std::move(options));
  s.gate.open();
  std::vector<std::unique_ptr<TestConnection>> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(std::make_unique<TestConnection>(s.port()));
    all.back()->send(
        request_text("POST", "/v1/completions", completion(std::string(15 << 20, 'a'), 3)));
  }
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 503; }));
  kill(getpid(), SIGTERM);
  for (const auto& c : all) {
    EXPECT_THAT(c->read_all(), testing::HasSubstr("\"draining\""));
  }
  EXPECT_EQ(s.server->server().wait(), 0);
  std::_Exit(testing::Test::HasFailure() ? 1 : 42);
}

// In a process of its own: a server that does not end in time leaves its process with exit code 0.
TEST(Leaving, E1ASignalEndsJobsOfWorkers) {
  EXPECT_EXIT(end_jobs_by_a_signal(), testing::ExitedWithCode(42), "");
}

TEST(Leaving, PrefillStopsBetweenChunks) {
  ScriptedOptions options;
  options.chunked_prefill_size = 16;
  GatedServer s(std::move(options));
  TestConnection c(s.port());
  c.send(request_text("POST", "/v1/completions", completion(std::string(64 * 16, 'a'), 3)));
  s.gate.pass(1);
  s.gate.wait_begun(2);  // its second chunk
  c.close();
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_aborted_requests_total") == 1; }));
  s.gate.open();
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_num_held_pages") == 0; }));
  EXPECT_LE(s.gate.begun(), 3u);
  EXPECT_ALIVE(s);
}

TEST(Leaving, AnAbortMayComeAtAnyPointOfALife) {
  constexpr int kTokens = 6;
  for (std::size_t steps = 0; steps <= kTokens + 1; ++steps) {
    GatedServer s;
    TestConnection c(s.port());
    c.send(request_text("POST", "/generate",
                        fmt::format(R"({{"text":"a","rid":"x","sampling_params":)"
                                    R"({{"max_new_tokens":{},"ignore_eos":true}}}})",
                                    kTokens)));
    s.gate.pass(static_cast<int>(steps));
    const bool under_way = steps < kTokens;
    if (under_way) {
      s.gate.wait_begun(steps + 1);
    } else {
      s.gate.open();
    }
    for (int twice = 0; twice < 2; ++twice) {
      EXPECT_EQ(ask(s.port(), "POST", "/abort_request", R"({"rid":"x"})").status, 200);
    }
    s.gate.open();
    const TestAnswer answer = read_test_answer(c.read_answer());
    ASSERT_EQ(answer.status, 200) << answer.body;
    const nlohmann::json json = answer.json();
    const auto tokens = json["output_ids"].size();
    EXPECT_EQ(json["text"], scripted_text("a", static_cast<std::int64_t>(tokens)));
    if (steps + 1 < kTokens) {  // otherwise the current step makes the last token
      EXPECT_EQ(json["meta_info"]["finish_reason"]["type"], "abort");
      EXPECT_LE(tokens, steps + 1);
    }
    EXPECT_EQ(ask(s.port(), "POST", "/abort_request", R"({"rid":"x"})").status, 200);
    EXPECT_ALIVE(s);
  }
}

// Scaled for a normal test run; LATHE_TEST_SCALE=25 gives 10,000.
TEST(Leaving, AtAnyByteOfARequestOrAnswer) {
  ScriptedServer s{ScriptedOptions()};
  const std::string whole =
      request_text("POST", "/v1/completions", completion("a", 40, R"(,"stream":true,"n":2)"));
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(test_seed(11) + t);
      const auto below = [&](std::size_t n) { return random() % n; };
      for (std::int64_t i = 0; i < 100 * test_scale(); ++i) {
        TestConnection c(s.port());
        if (!c.connected()) continue;
        const bool all = below(2) == 0;
        c.send(std::string_view(whole).substr(0, all ? whole.size() : below(whole.size())));
        if (below(5) == 0) c.close_sending();
        if (all) {
          for (std::size_t reads = below(4); reads > 0; --reads) c.read_some(1 + below(2000));
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_ALIVE(s);
  // Requests may end between the two questions.
  EXPECT_TRUE(comes([&] {
    return metric(s.port(), "lathe_requests_total") ==
           metric(s.port(), "lathe_e2e_request_latency_seconds_count");
  }));
  // The server holds no half-closed connection of these clients.
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_connections") == 1; }));
}

}  // namespace
}  // namespace lathe
