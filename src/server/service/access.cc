#include "server/service/access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <functional>

#include "server/http/request_head.h"

namespace lathe {
namespace {

// "name:80", "[::1]:80" and "name" without the port.
std::string_view without_port(std::string_view host) {
  if (!host.empty() && host.front() == '[') {
    const std::size_t end = host.find(']');
    const bool whole =
        end != std::string_view::npos && (end + 1 == host.size() || host[end + 1] == ':');
    return whole ? host.substr(1, end - 1) : host;
  }
  const std::size_t colon = host.rfind(':');
  return colon == std::string_view::npos || host.find(':') != colon ? host : host.substr(0, colon);
}

std::string_view host_of_origin(std::string_view origin) {
  const std::size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Schemes and hosts have no case.
bool equal(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

bool contains(const std::vector<std::string>& list, std::string_view text) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& s) { return equal(s, text) || s == "*"; });
}

std::string_view key_of(const HttpRequest& request) {
  if (const std::string* key = request.header("authorization")) {
    std::string_view text = *key;
    constexpr std::string_view kBearer = "Bearer ";
    if (equal(text.substr(0, kBearer.size()), kBearer)) {
      text.remove_prefix(std::min(text.find_first_not_of(' ', kBearer.size()), text.size()));
    }
    return text;
  }
  const std::string* key = request.header("x-api-key");
  return key != nullptr ? std::string_view(*key) : std::string_view();
}

// What answers have besides the headers that every page may read.
constexpr std::string_view kExposed =
    "X-Request-Id, X-Lathe-Ignored, Retry-After, X-Should-Retry, WWW-Authenticate, Allow, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";

// RFC 9110, 5.1: a token.
bool is_header_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

// The names in a list of headers, without those that are none.
std::string header_names(std::string_view list) {
  std::string out;
  while (!list.empty()) {
    std::string_view name = list.substr(0, list.find(','));
    list.remove_prefix(std::min(name.size() + 1, list.size()));
    name.remove_prefix(std::min(name.find_first_not_of(" \t"), name.size()));
    name = name.substr(0, name.find_last_not_of(" \t") + 1);
    if (!is_header_name(name)) continue;
    if (!out.empty()) out += ", ";
    out += name;
  }
  return out;
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
  if (equal(host, "localhost")) return true;
  const std::string text(host);
  std::array<unsigned char, 16> address{};
  if (inet_pton(AF_INET, text.c_str(), address.data()) == 1) return address[0] == 127;
  constexpr std::array<unsigned char, 16> kOne{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return inet_pton(AF_INET6, text.c_str(), address.data()) == 1 && address == kOne;
}

Caller find_caller(const AccessRules& rules, const HttpRequest& request) {
  const std::string_view offered = key_of(request);
  Caller out;
  out.admin = rules.admin_key.empty() ? rules.api_keys.empty()
                                      : equal_in_constant_time(rules.admin_key, offered);
  for (std::size_t i = 0; i < rules.api_keys.size(); ++i) {
    if (equal_in_constant_time(rules.api_keys[i], offered)) out.key = i;
  }
  if (out.key) out.client = 1 + *out.key;
  if (rules.api_keys.empty()) out.client = std::hash<std::string>()(request.address);
  return out;
}

std::optional<ApiError> check_key(const AccessRules& rules, RouteAuth auth,
                                  const HttpRequest& request) {
  const Caller caller = find_caller(rules, request);
  const bool may = caller.admin || auth == RouteAuth::open ||
                   (auth == RouteAuth::key && (rules.api_keys.empty() || caller.key));
  if (may) return std::nullopt;
  std::string wanted = "Authorization: wanted \"Bearer \" and ";
  if (auth == RouteAuth::key) {
    wanted += "an API key";
  } else {
    wanted +=
        rules.admin_key.empty() ? "the admin key, which --admin-api-key sets" : "the admin key";
  }
  return ApiError{401, "invalid_api_key",
                  wanted + ", got " + (key_of(request).empty() ? "none" : "another"), ""};
}

std::optional<ApiError> check_page_get(const HttpRequest& request) {
  if (request.method == "POST") return std::nullopt;
  if (request.header("origin") == nullptr && request.header("sec-fetch-site") == nullptr) {
    return std::nullopt;
  }
  return ApiError{403, "origin_not_allowed", "method: wanted POST from a page, got GET", ""};
}

std::optional<ApiError> check_origin(const AccessRules& rules, const HttpRequest& request) {
  const auto refused = [](std::string message) {
    return ApiError{403, "origin_not_allowed", std::move(message), ""};
  };
  const std::string* host = request.header("host");
  if (rules.loopback && host != nullptr && !is_loopback(without_port(*host)) &&
      !contains(rules.hosts, without_port(*host))) {
    return refused("Host: wanted localhost or a name of --allowed-hosts, got " +
                   (host->empty() ? "nothing" : *host));
  }
  const std::string* origin = request.header("origin");
  if (origin != nullptr && contains(rules.origins, *origin)) return std::nullopt;
  const bool own = origin != nullptr && host != nullptr && equal(host_of_origin(*origin), *host);
  if (origin != nullptr && !own) {
    return refused("Origin: wanted this server's or one of --cors-origins, got " + *origin);
  }
  const std::string* site = request.header("sec-fetch-site");
  if (site != nullptr && *site == "cross-site") {
    return refused("Sec-Fetch-Site: wanted a page of this server, got cross-site");
  }
  return std::nullopt;
}

bool is_origin(std::string_view text) {
  if (text == "*") return true;
  const std::string_view scheme = text.substr(0, text.find("://"));
  const std::string_view host = host_of_origin(text);
  const auto letter = [](char c) { return lower(c) >= 'a' && lower(c) <= 'z'; };
  const auto fits = [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
  };
  return !scheme.empty() && letter(scheme[0]) && std::ranges::all_of(scheme, fits) &&
         !host.empty() && host[0] != ':' && !host.ends_with(':') && is_host(host);
}

bool is_host_name(std::string_view text) {
  const bool address = text.find(':') != std::string_view::npos;
  if (text.empty() || text[0] == '[') return false;
  return text == "*" || is_host(address ? "[" + std::string(text) + "]" : std::string(text));
}

std::vector<HttpHeader> cors_headers(const AccessRules& rules, const HttpRequest& request) {
  if (rules.origins.empty()) return {};
  std::vector<HttpHeader> out{{"Vary", "Origin"}};
  const std::string* origin = request.header("origin");
  if (origin == nullptr || !contains(rules.origins, *origin)) return out;
  out.push_back({"Access-Control-Allow-Origin", *origin});
  out.push_back({"Access-Control-Expose-Headers", std::string(kExposed)});
  return out;
}

std::vector<HttpHeader> preflight_headers(const AccessRules& rules, const HttpRequest& request,
                                          std::string methods) {
  const std::string* origin = request.header("origin");
  if (request.method != "OPTIONS" || origin == nullptr || !contains(rules.origins, *origin)) {
    return {};
  }
  std::vector<HttpHeader> out{{"Access-Control-Allow-Methods", std::move(methods)},
                              {"Access-Control-Max-Age", "600"},
                              {"Vary", "Access-Control-Request-Headers"}};
  const std::string* asked = request.header("access-control-request-headers");
  std::string names = asked != nullptr ? header_names(*asked) : std::string();
  if (!names.empty()) out.push_back({"Access-Control-Allow-Headers", std::move(names)});
  return out;
}

}  // namespace lathe
