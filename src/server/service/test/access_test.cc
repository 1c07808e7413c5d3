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
  EXPECT_FALSE(check_key(rules, RouteAuth::admin, with({{"x-api-key", "boss"}})));
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

// RFC 6454, 6.1: what a browser sends as Origin has a scheme, a host and perhaps a port.
TEST(Access, OriginsAndHostNames) {
  for (const char* good : {"*", "https://a.example", "http://localhost:3000", "http://[::1]:80",
                           "chrome-extension://abcdef", "HTTP://A"}) {
    EXPECT_TRUE(is_origin(good)) << good;
  }
  for (const char* bad : {"", "evil", "a.example", "https://", "https://a/", "https://a/b", "://a",
                          "https://a b", "https://u@a", "1x://a", "https://:80",
                          "https://a:", "https://a:b", "null", "**", "https://*"}) {
    EXPECT_FALSE(is_origin(bad)) << bad;
  }
  for (const char* good : {"*", "a.example", "10.0.0.1", "::1", "LOCALHOST"}) {
    EXPECT_TRUE(is_host_name(good)) << good;
  }
  for (const char* bad : {"", "a:80", "[::1]", "[::1]:80", "a b", "http://a", "a/b", "*.a"}) {
    EXPECT_FALSE(is_host_name(bad)) << bad;
  }
}

TEST(Access, E11AnOrdinaryKeyIsNoAdmins) {
  AccessRules rules;
  rules.api_keys = {"one", "two"};
  EXPECT_TRUE(check_key(rules, RouteAuth::admin, with({{"x-api-key", "one"}})));
  EXPECT_FALSE(find_caller(rules, with({{"x-api-key", "two"}})).admin);
  EXPECT_EQ(find_caller(rules, with({{"x-api-key", "two"}})).key, 1u);
  EXPECT_EQ(find_caller(rules, with({{"x-api-key", ""}})).key, std::nullopt);
  rules.admin_key = "boss";
  EXPECT_TRUE(find_caller(rules, with({{"x-api-key", "boss"}})).admin);
  EXPECT_FALSE(find_caller(rules, with({})).admin);
}

TEST(Access, E14TheSchemeHasNoCase) {
  AccessRules rules;
  rules.api_keys = {"one"};
  for (const char* value : {"BEARER one", "bearer one", "bEaReR  one"}) {
    EXPECT_FALSE(check_key(rules, RouteAuth::key, with({{"authorization", value}}))) << value;
  }
}

TEST(Access, E14PagesChangeByPost) {
  HttpRequest get = with({{"sec-fetch-site", "same-site"}});
  get.method = "GET";
  EXPECT_TRUE(check_page_get(get));
  get.headers = {{"origin", "http://localhost"}};
  EXPECT_TRUE(check_page_get(get));
  get.headers = {};
  EXPECT_FALSE(check_page_get(get));
  get.headers = {{"sec-fetch-site", "same-origin"}};
  get.method = "POST";
  EXPECT_FALSE(check_page_get(get));
}

// A name that begins like an address resolves to whatever its owner wants (DNS rebinding).
TEST(Access, E5LoopbackIsAnAddressOrLocalhost) {
  AccessRules rules;
  for (const char* own : {"LocalHost:80", "127.255.0.1", "[::1]", "[0:0:0:0:0:0:0:1]:80"}) {
    EXPECT_FALSE(check_origin(rules, with({{"host", own}}))) << own;
  }
  for (const char* foreign :
       {"127.evil.example:30000", "127.0.0.1.evil.example", "127.0.0.1.", "127.1",
        "127.0.0.1.nip.io", "localhost.", "1.127.0.0.1", "[::1].a"}) {
    EXPECT_TRUE(check_origin(rules, with({{"host", foreign}}))) << foreign;
    const std::string origin = std::string("http://") + foreign;
    EXPECT_TRUE(check_origin(rules, with({{"host", foreign}, {"origin", origin}}))) << foreign;
  }
  rules.hosts = {"Box.Example"};
  rules.origins = {"https://Page.example"};
  EXPECT_FALSE(check_origin(rules, with({{"host", "bOX.example:1"}})));
  EXPECT_FALSE(
      check_origin(rules, with({{"host", "localhost"}, {"origin", "HTTPS://page.EXAMPLE"}})));
  EXPECT_FALSE(
      check_origin(rules, with({{"host", "LOCALHOST:8000"}, {"origin", "http://localhost:8000"}})));
  EXPECT_FALSE(is_loopback("127.0.0.1.evil.example"));
}

TEST(Access, OriginsAreTheServersOrAllowed) {
  AccessRules rules;
  const HttpHeader host{"host", "localhost:8000"};
  EXPECT_FALSE(check_origin(rules, with({host, {"origin", "http://localhost:8000"}})));
  EXPECT_TRUE(check_origin(rules, with({host, {"origin", "http://localhost:8001"}})));
  EXPECT_TRUE(check_origin(rules, with({host, {"origin", "https://a.example"}})));
  EXPECT_TRUE(check_origin(rules, with({host, {"sec-fetch-site", "cross-site"}})));
  rules.origins = {"https://a.example"};
  const HttpRequest allowed =
      with({host, {"origin", "https://a.example"}, {"sec-fetch-site", "cross-site"}});
  EXPECT_FALSE(check_origin(rules, allowed));
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
