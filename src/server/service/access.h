// Access rules: keys, origins, hosts. Pure functions of a request's headers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http.h"
#include "server/openai/api_error.h"

namespace lathe {

/// open   anyone
/// key    needs an API key, if one is set
/// admin  needs the admin key, if any key is set
#define LATHE_ROUTE_AUTHS(X) X(open) X(key) X(admin)
LATHE_ENUM(RouteAuth, LATHE_ROUTE_AUTHS)

struct AccessRules {
  std::vector<std::string> api_keys;
  std::string admin_key;
  std::vector<std::string> origins;  // "https://example.org", or "*": all
  std::vector<std::string> hosts;    // besides loopback names
  bool loopback = true;              // the server listens on loopback alone
};

/// Who sent a request, by its key.
struct Caller {
  bool admin = false;              // has the admin key, or no key is set
  std::optional<std::size_t> key;  // index of its API key
  // Tells clients apart that share the server: by key, without keys by address.
  std::uint64_t client = 0;

  bool operator==(const Caller&) const = default;
};
Caller find_caller(const AccessRules& rules, const HttpRequest& request);

/// 401 invalid_api_key. The key is "Authorization: Bearer K", "Authorization: K" or "x-api-key: K".
std::optional<ApiError> check_key(const AccessRules& rules, RouteAuth auth,
                                  const HttpRequest& request);

/// 403 origin_not_allowed: a page of another site, or a foreign host name, by which such a page
/// reaches a local server (DNS rebinding).
std::optional<ApiError> check_origin(const AccessRules& rules, const HttpRequest& request);

/// Whether a text is an origin as browsers send it (scheme://host[:port]), or "*". Others, such as
/// one with a path, would never be met.
bool is_origin(std::string_view text);
/// Whether a text is a host without its port, an IPv6 address without brackets, or "*".
bool is_host_name(std::string_view text);

/// CORS headers of any answer: with rules for origins, it varies with the request's.
std::vector<HttpHeader> cors_headers(const AccessRules& rules, const HttpRequest& request);
/// What a CORS preflight's answer has besides, if the request is one from an allowed origin; else
/// nothing. Any header may be sent: clients have many of their own, and the origin is trusted.
std::vector<HttpHeader> preflight_headers(const AccessRules& rules, const HttpRequest& request,
                                          std::string methods);

/// The time does not depend on where the texts differ, so keys cannot be guessed byte by byte.
bool equal_in_constant_time(std::string_view a, std::string_view b);

/// 403 origin_not_allowed: a GET that changes something, sent by a page. Pages of a neighbouring
/// site send one without an Origin.
std::optional<ApiError> check_page_get(const HttpRequest& request);

/// "localhost" in any case, or a loopback address. Not a name that begins like one, which can
/// resolve to any address.
bool is_loopback(std::string_view host);

}  // namespace lathe
