#include "server/service/access.h"

#include <algorithm>

namespace lathe {
namespace {

// "name:80", "[::1]:80" and "name" without the port.
std::string_view without_port(std::string_view host) {
  if (!host.empty() && host.front() == '[') {
    const std::size_t end = host.find(']');
    return end == std::string_view::npos ? host : host.substr(1, end - 1);
  }
  const std::size_t colon = host.rfind(':');
  return colon == std::string_view::npos || host.find(':') != colon ? host : host.substr(0, colon);
}

std::string_view host_of_origin(std::string_view origin) {
  const std::size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
}

bool contains(const std::vector<std::string>& list, std::string_view text) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& s) { return s == text || s == "*"; });
}

std::string_view key_of(const HttpRequest& request) {
  if (const std::string* key = request.header("authorization")) {
    std::string_view text = *key;
    constexpr std::string_view kBearer = "Bearer ";
    if (text.starts_with(kBearer) || text.starts_with("bearer "))
      text.remove_prefix(kBearer.size());
    return text;
  }
  const std::string* key = request.header("x-api-key");
  return key != nullptr ? std::string_view(*key) : std::string_view();
}

bool has_key(const std::vector<std::string>& keys, std::string_view offered) {
  bool found = false;
  for (const std::string& key : keys) found |= equal_in_constant_time(key, offered);
  return found;
}

}  // namespace

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned differ = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const char other = a.empty() ? '\0' : a[i % a.size()];
    differ |= static_cast<unsigned char>(other) ^ static_cast<unsigned char>(b[i]);
  }
  return differ == 0;
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::optional<ApiError> check_key(const AccessRules& rules, RouteAuth auth,
                                  const HttpRequest& request) {
  if (auth == RouteAuth::open) return std::nullopt;
  const std::string_view offered = key_of(request);
  const bool admin = !rules.admin_key.empty();
  if (admin && equal_in_constant_time(rules.admin_key, offered)) return std::nullopt;
  if (!(auth == RouteAuth::admin && admin)) {
    if (rules.api_keys.empty() || has_key(rules.api_keys, offered)) return std::nullopt;
  }
  return ApiError{401, "invalid_api_key",
                  std::string("Authorization: wanted \"Bearer \" and ") +
                      (auth == RouteAuth::admin && admin ? "the admin key" : "an API key") +
                      ", got " + (offered.empty() ? "none" : "another"),
                  ""};
}

std::optional<ApiError> check_origin(const AccessRules& rules, const HttpRequest& request) {
  const auto refused = [](std::string message) {
    return ApiError{403, "origin_not_allowed", std::move(message), ""};
  };
  const std::string* host = request.header("host");
  if (rules.loopback && host != nullptr && !is_loopback(without_port(*host)) &&
      !contains(rules.hosts, without_port(*host))) {
    return refused("Host: wanted localhost or a name of --allowed-hosts, got " + *host);
  }
  const std::string* origin = request.header("origin");
  if (origin != nullptr && contains(rules.origins, *origin)) return std::nullopt;
  const bool own = origin != nullptr && host != nullptr && host_of_origin(*origin) == *host;
  if (origin != nullptr && !own) {
    return refused("Origin: wanted this server's or one of --cors-origins, got " + *origin);
  }
  const std::string* site = request.header("sec-fetch-site");
  if (site != nullptr && *site == "cross-site") {
    return refused("Sec-Fetch-Site: wanted a page of this server, got cross-site");
  }
  return std::nullopt;
}

std::vector<HttpHeader> cors_headers(const AccessRules& rules, const HttpRequest& request) {
  const std::string* origin = request.header("origin");
  if (origin == nullptr || !contains(rules.origins, *origin)) return {};
  return {{"Access-Control-Allow-Origin", *origin}, {"Vary", "Origin"}};
}

}  // namespace lathe
