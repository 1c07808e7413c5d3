// What the Fetch standard's browsers need of a server that allows their page: preflights of real
// clients' headers, and the right to read what answers say.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"

namespace lathe {
namespace {

constexpr std::string_view kPage = "Origin: https://page.example\r\n";

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The values of all of a head's lines of that name, split at commas, in lower case.
std::set<std::string> listed(const std::string& head, const std::string& name) {
  std::set<std::string> out;
  std::istringstream lines(head);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || lower_case(line.substr(0, colon)) != name) continue;
    std::istringstream values(lower_case(line.substr(colon + 1)));
    for (std::string value; std::getline(values, value, ',');) {
      value.erase(0, value.find_first_not_of(" \t\r"));
      value.erase(value.find_last_not_of(" \t\r") + 1);
      out.insert(value);
    }
  }
  return out;
}

ScriptedOptions allows_page() {
  ScriptedOptions options;
  options.server.cors_origins = {"https://page.example"};
  return options;
}

// Headers of the packages openai and @anthropic-ai/sdk (npm) in a browser, from their sources.
TEST(Cors, PreflightsOfTheClientsPass) {
  ScriptedServer s(allows_page());
  const std::string asked =
      "anthropic-beta,anthropic-dangerous-direct-browser-access,anthropic-version,authorization,"
      "content-type,idempotency-key,openai-beta,openai-organization,openai-project,x-api-key,"
      "x-request-id,x-stainless-arch,x-stainless-async,x-stainless-custom-poll-interval,"
      "x-stainless-helper,x-stainless-helper-method,x-stainless-lang,x-stainless-os,"
      "x-stainless-package-version,x-stainless-poll-helper,x-stainless-raw-response,"
      "x-stainless-read-timeout,x-stainless-retry-count,x-stainless-runtime,"
      "x-stainless-runtime-version,x-stainless-timeout";
  const auto preflight = [&](const std::string& origin, const std::string& names) {
    return ask(s.port(), "OPTIONS", "/v1/messages", "",
               fmt::format("{}Access-Control-Request-Method: POST\r\n"
                           "Access-Control-Request-Headers: {}\r\n",
                           origin, names));
  };
  const TestAnswer answer = preflight(std::string(kPage), asked);
  EXPECT_EQ(answer.status, 204) << answer.head;
  EXPECT_EQ(listed(answer.head, "access-control-allow-headers"), listed("x: " + asked, "x"));
  EXPECT_TRUE(listed(answer.head, "access-control-allow-methods").contains("post"));
  EXPECT_EQ(listed(answer.head, "access-control-allow-origin"),
            (std::set<std::string>{"https://page.example"}));
  EXPECT_EQ(listed(answer.head, "vary"),
            (std::set<std::string>{"origin", "access-control-request-headers"}));
  // What is no header's name is not repeated.
  EXPECT_EQ(listed(preflight(std::string(kPage), "x-a, ,<b>,x y,\"q\", X-C").head,
                   "access-control-allow-headers"),
            (std::set<std::string>{"x-a", "x-c"}));
  const TestAnswer foreign = preflight("Origin: https://other.example\r\n", asked);
  EXPECT_EQ(foreign.status, 403);
  EXPECT_TRUE(listed(foreign.head, "access-control-allow-headers").empty()) << foreign.head;
  EXPECT_TRUE(listed(foreign.head, "access-control-allow-origin").empty()) << foreign.head;
}

// Browsers show a page the headers that Fetch lists as safe, and those that the server exposes.
TEST(Cors, PagesReadEveryHeader) {
  ScriptedOptions options = allows_page();
  options.server.api_keys = {"k"};
  options.server.requests_per_minute = 3;
  options.server.tokens_per_minute = 100000;
  options.server.http.max_body_bytes = 2000;
  ScriptedServer s(std::move(options));
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const std::set<std::string> others = {"access-control-allow-origin",
                                        "access-control-expose-headers",
                                        "cache-control",
                                        "connection",
                                        "content-length",
                                        "content-type",
                                        "date",
                                        "transfer-encoding",
                                        "vary",
                                        "x-accel-buffering"};
  const std::string key = std::string(kPage) + "Authorization: Bearer k\r\n";
  const std::string body = R"({"prompt":"x","max_tokens":1,"odd":1})";
  const std::string streamed = R"({"prompt":"x","max_tokens":1,"odd":1,"stream":true})";
  const std::string large = R"({"prompt":")" + std::string(3000, 'x') + "\"}";
  std::set<int> seen;
  std::set<std::string> names;
  for (const auto& [method, text, headers] : {std::tuple{"POST", body, key},
                                              {"POST", streamed, key},
                                              {"POST", large, key},
                                              {"POST", body, std::string(kPage)},
                                              {"DELETE", std::string(), key},
                                              {"POST", std::string("{"), key},
                                              {"POST", body, key + "Content-Encoding: gzip\r\n"},
                                              {"POST", body, key},
                                              {"POST", body, key}}) {
    const TestAnswer answer = ask(s.port(), method, "/v1/completions", text, headers);
    seen.insert(answer.status);
    const auto exposed = listed(answer.head, "access-control-expose-headers");
    EXPECT_EQ(listed(answer.head, "access-control-allow-origin").size(), 1u) << answer.head;
    EXPECT_TRUE(listed(answer.head, "vary").contains("origin")) << answer.head;
    std::istringstream lines(answer.head);
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line) && line.find(':') != std::string::npos) {
      const std::string name = lower_case(line.substr(0, line.find(':')));
      if (others.contains(name)) continue;
      names.insert(name);
      EXPECT_TRUE(exposed.contains(name)) << name << "\n" << answer.head;
    }
  }
  EXPECT_THAT(seen, ::testing::ElementsAre(200, 400, 401, 405, 413, 415, 429));
  EXPECT_THAT(
      names, ::testing::IsSupersetOf({"allow", "retry-after", "www-authenticate", "x-lathe-ignored",
                                      "x-ratelimit-remaining-tokens", "x-request-id"}));
}

// A cache must not hand one origin's answer to another.
TEST(Cors, AnswersVaryWithTheOrigin) {
  ScriptedServer allows(allows_page());
  for (const std::string& origin :
       {std::string(), std::string(kPage), std::string("Origin: https://other.example\r\n")}) {
    for (const char* path : {"/health", "/nowhere"}) {
      const TestAnswer answer = ask(allows.port(), "GET", path, "", origin);
      EXPECT_TRUE(listed(answer.head, "vary").contains("origin")) << answer.head;
    }
  }
  ScriptedServer plain{ScriptedOptions()};
  EXPECT_TRUE(listed(ask(plain.port(), "GET", "/health").head, "vary").empty());
}

}  // namespace
}  // namespace lathe
