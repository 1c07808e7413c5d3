#include "server/service/access.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

HttpRequest with(std::vector<HttpHeader> headers) {
  HttpRequest r;
  r.headers = std::move(headers);
  return r;
}

TEST(Access, KeysComeInThreeForms) {
  AccessRules rules;
  rules.api_keys = {"one", "two"};
  for (const HttpHeader& h : {HttpHeader{"authorization", "Bearer two"},
                              HttpHeader{"authorization", "one"}, HttpHeader{"x-api-key", "one"}}) {
    EXPECT_FALSE(check_key(rules, RouteAuth::key, with({h})));
  }
  for (const char* wrong : {"", "on", "onee", "Bearer", "Bearer ", "Basic one"}) {
    const auto error = check_key(rules, RouteAuth::key, with({{"authorization", wrong}}));
    ASSERT_TRUE(error) << wrong;
    EXPECT_EQ(error->status, 401);
    EXPECT_FALSE(check_key(rules, RouteAuth::open, with({{"authorization", wrong}})));
  }
}

TEST(Access, WithoutAKeyAnybodyMayAskAndAnAdminKeyGuardsItsRoutes) {
  AccessRules rules;
  EXPECT_FALSE(check_key(rules, RouteAuth::key, with({{"authorization", "Bearer "}})));
  EXPECT_FALSE(check_key(rules, RouteAuth::admin, with({})));
  rules.admin_key = "boss";
  EXPECT_TRUE(check_key(rules, RouteAuth::admin, with({})));
  EXPECT_FALSE(check_key(rules, RouteAuth::key, with({})));
  EXPECT_FALSE(check_key(rules, RouteAuth::admin, with({{"x-api-key", "boss"}})));
  rules.api_keys = {"one"};
  EXPECT_TRUE(check_key(rules, RouteAuth::admin, with({{"x-api-key", "one"}})));
  EXPECT_FALSE(check_key(rules, RouteAuth::key, with({{"x-api-key", "boss"}})));
}

TEST(Access, HostsOfALoopbackServerAreItsOwn) {
  AccessRules rules;
  for (const char* own :
       {"localhost", "localhost:80", "127.0.0.1:1", "127.1.2.3", "[::1]:80", "[::1]"}) {
    EXPECT_FALSE(check_origin(rules, with({{"host", own}}))) << own;
  }
  for (const char* foreign : {"a.example", "a.example:80", "localhost.a.example", "[::2]:80", ""}) {
    EXPECT_TRUE(check_origin(rules, with({{"host", foreign}}))) << foreign;
  }
  rules.hosts = {"a.example"};
  EXPECT_FALSE(check_origin(rules, with({{"host", "a.example:80"}})));
  rules.hosts.clear();
  rules.loopback = false;
  EXPECT_FALSE(check_origin(rules, with({{"host", "a.example"}})));
}

TEST(Access, OriginsAreTheServersOrAllowed) {
  AccessRules rules;
  const HttpHeader host{"host", "localhost:8000"};
  EXPECT_FALSE(check_origin(rules, with({host, {"origin", "http://localhost:8000"}})));
  EXPECT_TRUE(check_origin(rules, with({host, {"origin", "http://localhost:8001"}})));
  EXPECT_TRUE(check_origin(rules, with({host, {"origin", "https://a.example"}})));
  EXPECT_TRUE(check_origin(rules, with({host, {"sec-fetch-site", "cross-site"}})));
  EXPECT_TRUE(cors_headers(rules, with({{"origin", "https://a.example"}})).empty());
  rules.origins = {"https://a.example"};
  const HttpRequest allowed =
      with({host, {"origin", "https://a.example"}, {"sec-fetch-site", "cross-site"}});
  EXPECT_FALSE(check_origin(rules, allowed));
  EXPECT_EQ(cors_headers(rules, allowed)[0].value, "https://a.example");
}

TEST(Access, ComparisonFindsEveryDifference) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_TRUE(equal_in_constant_time("", ""));
  for (const char* other : {"", "ab", "abd", "abcabc", "Abc"}) {
    EXPECT_FALSE(equal_in_constant_time("abc", other)) << other;
    EXPECT_FALSE(equal_in_constant_time(other, "abc")) << other;
  }
}

}  // namespace
}  // namespace lathe
