// What clients of one server have to do with each other: cached prompts, priorities, and places.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"
#include "server/scripted/test/step_gate_test_util.h"

namespace lathe {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kLong(600, 'a');

std::string as_key(const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; }

// A route, the body of a request with a long prompt, and where its answer counts cached tokens.
struct CountedRoute {
  const char* path;
  json body;
  json::json_pointer cached;
};

std::vector<CountedRoute> counted_routes() {
  const json messages = json::array({{{"role", "user"}, {"content", kLong}}});
  const json::json_pointer openai("/usage/prompt_tokens_details/cached_tokens");
  return {
      {"/v1/completions", {{"prompt", kLong}, {"max_tokens", 2}}, openai},
      {"/v1/chat/completions", {{"messages", messages}, {"max_tokens", 2}}, openai},
      {"/v1/responses",
       {{"input", kLong}, {"max_output_tokens", 2}},
       json::json_pointer("/usage/input_tokens_details/cached_tokens")},
      {"/v1/messages",
       {{"messages", messages}, {"max_tokens", 2}},
       json::json_pointer("/usage/cache_read_input_tokens")},
      {"/generate",
       {{"text", kLong}, {"sampling_params", {{"max_new_tokens", 2}}}},
       json::json_pointer("/meta_info/cached_tokens")},
  };
}

std::int64_t cached(ScriptedServer& s, CountedRoute route, const std::string& salt,
                    const std::string& key = "one") {
  if (!salt.empty()) route.body["cache_salt"] = salt;
  const TestAnswer answer = ask(s.port(), "POST", route.path, route.body.dump(), as_key(key));
  EXPECT_EQ(answer.status, 200) << answer.body;
  return answer.json().at(route.cached);
}

// A client learns from no route that somebody sent the same prompt with another salt.
TEST(Tenants, ASaltSeparatesCachedPrompts) {
  for (const CountedRoute& route : counted_routes()) {
    SCOPED_TRACE(route.path);
    ScriptedServer s{ScriptedOptions()};
    for (const std::string salt : {"", "salt", "pepper"}) {
      EXPECT_EQ(cached(s, route, salt), 0);
      EXPECT_GT(cached(s, route, salt), 500);
    }
    EXPECT_GT(cached(s, route, ""), 500);
  }
}

// Routes share what they cache under one salt.
TEST(Tenants, ASaltIsOneForAllRoutes) {
  ScriptedServer s{ScriptedOptions()};
  const auto routes = counted_routes();
  EXPECT_EQ(cached(s, routes[0], "salt"), 0);
  for (const CountedRoute& route : routes) EXPECT_GT(cached(s, route, "salt"), 500) << route.path;
}

TEST(Tenants, KeysShareCachedPromptsUnlessIsolated) {
  for (const bool isolates : {false, true}) {
    for (const CountedRoute& route : counted_routes()) {
      SCOPED_TRACE(route.path);
      ScriptedOptions options;
      options.server.api_keys = {"one", "two"};
      options.server.admin_key = "boss";
      options.server.isolate_prefix_cache = isolates;
      ScriptedServer s(std::move(options));
      EXPECT_EQ(cached(s, route, "", "one"), 0);
      EXPECT_GT(cached(s, route, "", "one"), 500);
      EXPECT_EQ(cached(s, route, "", "two") == 0, isolates);
      EXPECT_EQ(cached(s, route, "", "boss") == 0, isolates);
      EXPECT_EQ(cached(s, route, "salt", "one"), 0);
      EXPECT_EQ(cached(s, route, "salt", "two") == 0, isolates);
      EXPECT_GT(cached(s, route, "salt", "one"), 500);
    }
  }
}

TEST(Tenants, ASaltHasABound) {
  ScriptedServer s{ScriptedOptions()};
  for (const CountedRoute& route : counted_routes()) {
    json body = route.body;
    for (const json& wrong : {json(std::string(257, 's')), json(3), json::array(), json("")}) {
      body["cache_salt"] = wrong;
      const TestAnswer answer = ask(s.port(), "POST", route.path, body.dump());
      EXPECT_EQ(answer.status, 400);
      EXPECT_THAT(answer.body,
                  HasSubstr("cache_salt: wanted a string of at most 256 bytes that is not empty"));
    }
    body["cache_salt"] = std::string(256, 's');
    EXPECT_EQ(ask(s.port(), "POST", route.path, body.dump()).status, 200);
  }
}

TEST(Tenants, PrioritiesNeedTheirPolicy) {
  for (const bool allowed : {false, true}) {
    ScriptedOptions options;
    options.server.fields.priorities = allowed;
    ScriptedServer s(std::move(options));
    for (const CountedRoute& route : counted_routes()) {
      json body = route.body;
      body["priority"] = 0;
      EXPECT_EQ(ask(s.port(), "POST", route.path, body.dump()).status, 200);
      body["priority"] = -7;
      const TestAnswer answer = ask(s.port(), "POST", route.path, body.dump());
      EXPECT_EQ(answer.status, allowed ? 200 : 400) << answer.body;
      if (allowed) continue;
      EXPECT_THAT(answer.body, HasSubstr("priority: wanted 0"));
      EXPECT_THAT(answer.body, HasSubstr("got -7; --scheduling-policy priority"));
    }
  }
}

// Waits until a request is with the engine.
void wait_queued(GatedServer& s) {
  ASSERT_TRUE(comes([&] { return metric(s.port(), "lathe_queued_tokens") > 0; }));
}

TEST(Tenants, PrioritiesOrderRequests) {
  ScriptedOptions options;
  options.server.fields.priorities = true;
  options.max_running_requests = 1;
  GatedServer s(std::move(options));
  TestConnection running(s.port()), late(s.port()), soon(s.port());
  running.send(request_text("POST", "/v1/completions", completion("q", 3)));
  s.gate.wait_begun(1);
  for (const auto& [connection, priority] : {std::pair{&late, 9}, {&soon, 1}}) {
    const double before = metric(s.port(), "lathe_queued_tokens");
    connection->send(request_text("POST", "/v1/completions",
                                  completion("q", 3, fmt::format(R"(,"priority":{})", priority))));
    ASSERT_TRUE(comes([&] { return metric(s.port(), "lathe_queued_tokens") > before; }));
  }
  // Three steps for each; the last request has not begun when the second has ended.
  s.gate.pass(6);
  EXPECT_THAT(soon.read_answer(), HasSubstr("200 OK"));
  EXPECT_LE(s.gate.begun(), 7u);
  s.gate.open();
  EXPECT_THAT(late.read_answer(), HasSubstr("200 OK"));
}

// One client's choices have all places; the other's answer of three tokens needs three steps, and
// those that had begun.
void expect_fair(GatedServer& s, TestConnection& greedy, TestConnection& other,
                 const std::string& greedy_key, const std::string& other_key) {
  greedy.send(request_text("POST", "/v1/completions", completion("q", 4000, R"(,"n":4)"),
                           as_key(greedy_key)));
  s.gate.pass(5);
  s.gate.wait_begun(6);
  EXPECT_EQ(s.gate.rows_of(5), 4);
  other.send(request_text("POST", "/v1/completions", completion("q", 3), as_key(other_key)));
  wait_queued(s);
  s.gate.pass(4);
  EXPECT_THAT(other.read_answer(), HasSubstr("200 OK"));
  EXPECT_LE(s.gate.begun(), 10u);
}

TEST(Tenants, AKeyIsNotDelayedByAnother) {
  ScriptedOptions options;
  options.server.api_keys = {"one", "two"};
  options.server.open_metrics = true;
  options.max_running_requests = 4;
  GatedServer s(std::move(options));
  TestConnection greedy(s.port()), other(s.port());
  expect_fair(s, greedy, other, "one", "two");
}

TEST(Tenants, WithoutKeysAddressesAreClients) {
  ScriptedOptions options;
  options.max_running_requests = 4;
  GatedServer s(std::move(options));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ASSERT_EQ(inet_pton(AF_INET, "127.0.0.2", &address.sin_addr), 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  TestConnection greedy(s.port()), other(s.port(), 0, fd);
  expect_fair(s, greedy, other, "", "");
}

}  // namespace
}  // namespace lathe
