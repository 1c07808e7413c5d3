// Overload and administration: what waits is counted, and who may end what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scripted/test/http_client_test_util.h"
#include "server/scripted/test/step_gate_test_util.h"

namespace lathe {
namespace {

// Every choice counts until it has a token of its own.
TEST(Overload, E8EveryChoiceWaits) {
  ScriptedOptions options;
  options.server.max_queued_requests = 10;
  options.max_running_requests = 2;
  GatedServer s(std::move(options));
  const auto choices = [](int n) { return completion("a", 1000, fmt::format(R"(,"n":{})", n)); };
  const TestAnswer never = ask(s.port(), "POST", "/v1/completions", choices(11));
  EXPECT_EQ(never.status, 400);
  EXPECT_EQ(never.json()["error"]["param"], "n");
  EXPECT_EQ(
      ask(s.port(), "POST", "/generate", R"({"text":["a","b"],"sampling_params":{"n":6}})").status,
      400);
  TestConnection many(s.port());
  many.send(request_text("POST", "/v1/completions", choices(10)));
  s.gate.wait_begun(1);
  EXPECT_EQ(ask(s.port(), "POST", "/v1/completions", choices(1)).status, 503);
  // The first choice has a token, then the second; eight wait.
  s.gate.pass(3);
  s.gate.wait_begun(4);
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const TestAnswer full = ask(s.port(), "POST", "/v1/completions", choices(3));
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.json()["error"]["code"], "queue_full");
  TestConnection fits(s.port());
  fits.send(request_text("POST", "/v1/completions", choices(2)));
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 503; }));
  many.close();
  fits.close();
  EXPECT_TRUE(comes([&] { return metric(s.port(), "lathe_aborted_requests_total") == 2; }));
  s.gate.open();
  EXPECT_ALIVE(s);
}

// Each answer of a request keeps its lists, so their length counts for each.
TEST(Overload, E2ListsOfManyAnswersAreBounded) {
  ScriptedServer s{ScriptedOptions()};
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const auto stops = [](int ids) {
    std::string list = "0";
    for (int i = 1; i < ids; ++i) list += ",0";
    return list;
  };
  const auto many = [&](const std::string& stop, const std::string& bias) {
    return ask(s.port(), "POST", "/v1/completions",
               completion("a", 1,
                          fmt::format(R"(,"n":128,"stop_token_ids":[{}],"logit_bias":{{{}}})", stop,
                                      bias)));
  };
  EXPECT_EQ(many(stops(31'250), R"("1":1)").status, 200);
  const TestAnswer ids = many(stops(31'251), "");
  EXPECT_EQ(ids.status, 400);
  EXPECT_EQ(ids.json()["error"]["param"], "stop_token_ids");
  std::string names = R"("0":1)";
  for (int i = 1; i <= 31'250; ++i) names += fmt::format(R"(,"{}":1)", i);
  EXPECT_EQ(many("", names).json()["error"]["param"], "logit_bias");
  // Each prompt of a list counts.
  const std::string each = fmt::format(R"({{"n":64,"stop_token_ids":[{}]}})", stops(31'251));
  const TestAnswer two =
      ask(s.port(), "POST", "/generate",
          fmt::format(R"({{"text":["a","b"],"sampling_params":[{0},{0}]}})", each));
  EXPECT_EQ(two.status, 400);
  EXPECT_EQ(two.json()["error"]["param"], "sampling_params[0].stop_token_ids");
}

TEST(Overload, E11KeysEndTheirOwnRequests) {
  ScriptedOptions options;
  options.server.api_keys = {"one", "two"};
  options.server.open_metrics = true;
  GatedServer s(std::move(options));
  const std::string one = "X-Api-Key: one\r\n", two = "X-Api-Key: two\r\n";
  TestConnection c(s.port());
  c.send(request_text("POST", "/v1/completions", completion("a", 1000, R"(,"rid":"x")"), one));
  s.gate.wait_begun(1);
  for (const std::string& key : {one, two}) {
    for (const char* path : {"/flush_cache", "/reset_prefix_cache"}) {
      EXPECT_EQ(ask(s.port(), "POST", path, "", key).status, 401);
    }
    EXPECT_EQ(ask(s.port(), "POST", "/abort_request", R"({"abort_all":true})", key).status, 401);
  }
  EXPECT_EQ(ask(s.port(), "POST", "/abort_request", R"({"rid":"x"})", two).status, 200);
  EXPECT_EQ(metric(s.port(), "lathe_aborted_requests_total"), 0);
  EXPECT_EQ(ask(s.port(), "POST", "/abort_request", R"({"rid":"x"})", one).status, 200);
  EXPECT_EQ(metric(s.port(), "lathe_aborted_requests_total"), 1);
  s.gate.open();
}

// A rid of one prompt ends that prompt's choices; a single rid, and the answer's id, all of them.
TEST(Overload, ARidEndsItsPrompt) {
  for (const auto& [rids, ended, reasons] :
       {std::tuple{R"(["x","y"])", "y", std::vector{"length", "length", "abort", "abort"}},
        {R"(["x","y"])", "x", std::vector{"abort", "abort", "length", "length"}},
        {R"("x")", "x", std::vector{"abort", "abort", "abort", "abort"}},
        {R"(["x","y"])", "z", std::vector{"length", "length", "length", "length"}}}) {
    GatedServer s{ScriptedOptions()};
    TestConnection c(s.port());
    c.send(request_text(
        "POST", "/v1/completions",
        fmt::format(R"({{"prompt":["a","b"],"n":2,"max_tokens":50,"ignore_eos":true,"rid":{}}})",
                    rids)));
    s.gate.wait_begun(1);
    EXPECT_EQ(
        ask(s.port(), "POST", "/abort_request", fmt::format(R"({{"rid":"{}"}})", ended)).status,
        200);
    s.gate.open();
    const std::string answer = c.read_answer();
    const auto json = nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n") + 4));
    ASSERT_EQ(json["choices"].size(), 4u) << answer;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(json["choices"][i]["finish_reason"], reasons[i]) << rids << ended << i;
    }
  }
}

TEST(Overload, AbortSaysWhatIsWrong) {
  ScriptedServer s{ScriptedOptions()};
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const auto message = [&](const char* body) {
    const auto answer = ask(s.port(), "POST", "/abort_request", body);
    EXPECT_EQ(answer.status, 400) << body;
    return answer.json()["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message(R"({"rid":5})"), "rid: wanted a string, got 5");
  EXPECT_EQ(message(R"({"rid":["x"],"abort_all":true})"), R"(rid: wanted a string, got ["x"])");
  EXPECT_EQ(message(R"({"abort_all":"true"})"), R"(abort_all: wanted true or false, got "true")");
  EXPECT_EQ(message(R"({"rid":"x","abort_all":1})"), "abort_all: wanted true or false, got 1");
  for (const char* none : {"{}", R"({"abort_all":false})", R"({"rid":null,"abort_all":null})"}) {
    EXPECT_THAT(message(none), testing::HasSubstr("got neither")) << none;
  }
}

TEST(Overload, E14FlushTakesSecondsAndNoGetOfAPage) {
  ScriptedServer s{ScriptedOptions()};
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  for (const char* seconds : {"nan", "inf", "-1", "1e300", "", "1s", "0x1"}) {
    const auto answer = ask(s.port(), "POST", fmt::format("/flush_cache?timeout={}", seconds));
    EXPECT_EQ(answer.status, 400) << seconds;
    EXPECT_EQ(answer.json()["error"]["param"], "timeout") << seconds;
  }
  // One of two values would be lost.
  for (const char* query : {"timeout=1&timeout=2", "timeout=1&t%69meout=1", "timeout&timeout=1"}) {
    const auto answer = ask(s.port(), "POST", fmt::format("/flush_cache?{}", query));
    EXPECT_EQ(answer.status, 400) << query;
    EXPECT_EQ(answer.json()["error"]["message"], "?timeout: wanted it once, got it twice") << query;
  }
  EXPECT_EQ(ask(s.port(), "POST", "/flush_cache?t%69meout=x").status, 400);
  EXPECT_EQ(ask(s.port(), "POST", "/flush_cache?timeout").status, 400);
  const std::string message = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":1})";
  EXPECT_EQ(ask(s.port(), "POST", "/v1/messages?beta=true", message).status, 200);
  EXPECT_THAT(ask(s.port(), "POST", "/v1/messages?beta=true&beta=false", message).body,
              testing::HasSubstr("?beta: wanted it once"));
  const std::string page = "Sec-Fetch-Site: same-site\r\n";
  EXPECT_EQ(ask(s.port(), "GET", "/flush_cache", "", page).status, 403);
  EXPECT_EQ(ask(s.port(), "HEAD", "/flush_cache").status, 405);
  for (const char* method : {"GET", "POST"}) {
    EXPECT_EQ(ask(s.port(), method, "/flush_cache?timeout=0.5").status, 200);
  }
}

}  // namespace
}  // namespace lathe
