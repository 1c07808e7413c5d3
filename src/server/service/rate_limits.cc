#include "server/service/rate_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lathe {
namespace {

// Seconds until `left` of a minute's `most` have grown to `wanted`.
double seconds_to(double wanted, double left, double most) {
  return std::max(0.0, (wanted - left) * 60 / most);
}

ApiError too_many(std::string_view what, double most, double wanted, double left, double wait,
                  std::string_view flag) {
  const int seconds = static_cast<int>(std::min(std::ceil(wait - 1e-9), 1e9));
  ApiError out{
      429, "rate_limit_exceeded",
      fmt::format("{}: wanted at most {:.0f} a minute for an API key, got {:.0f} with {:.0f} "
                  "left; retry after {} s, or {}",
                  what, most, wanted, std::floor(left), seconds, flag),
      ""};
  out.retry_after = seconds;
  return out;
}

}  // namespace

RateLimits::Allowance& RateLimits::renewed(const Caller& caller, Clock::time_point now) {
  const auto [at, fresh] = left_.try_emplace(*caller.key, Allowance{requests_, tokens_, now});
  Allowance& a = at->second;
  const double minutes = std::chrono::duration<double>(now - a.since).count() / 60;
  a.requests = std::min(requests_, a.requests + minutes * requests_);
  a.tokens = std::min(tokens_, a.tokens + minutes * tokens_);
  a.since = now;
  return a;
}

Result<std::int64_t, ApiError> RateLimits::take(const Caller& caller, std::int64_t tokens,
                                                Clock::time_point now) {
  if (!limits(caller)) return std::int64_t{0};
  Allowance& a = renewed(caller, now);
  const double needed = std::min(static_cast<double>(tokens), tokens_);
  if (requests_ > 0 && a.requests < 1) {
    return too_many("requests", requests_, 1, a.requests, seconds_to(1, a.requests, requests_),
                    "--requests-per-minute");
  }
  if (tokens_ > 0 && a.tokens < needed) {
    return too_many("tokens", tokens_, static_cast<double>(tokens), a.tokens,
                    seconds_to(needed, a.tokens, tokens_), "--tokens-per-minute");
  }
  a.requests -= 1;
  a.tokens -= static_cast<double>(tokens);
  return tokens;
}

void RateLimits::give_back(const Caller& caller, std::int64_t tokens) {
  if (!limits(caller)) return;
  const auto at = left_.find(*caller.key);
  if (at == left_.end()) return;
  at->second.tokens = std::min(tokens_, at->second.tokens + static_cast<double>(tokens));
}

std::vector<HttpHeader> RateLimits::headers(const Caller& caller, Clock::time_point now) {
  std::vector<HttpHeader> out;
  if (!limits(caller)) return out;
  const Allowance& a = renewed(caller, now);
  const auto add = [&](const char* what, double most, double left) {
    if (most == 0) return;
    const std::string name = "x-ratelimit-";
    out.push_back({name + "limit-" + what, fmt::format("{:.0f}", most)});
    out.push_back(
        {name + "remaining-" + what, fmt::format("{:.0f}", std::floor(std::max(0.0, left)))});
    out.push_back(
        {name + "reset-" + what, fmt::format("{:.0f}s", std::ceil(seconds_to(most, left, most)))});
  };
  add("requests", requests_, a.requests);
  add("tokens", tokens_, a.tokens);
  return out;
}

}  // namespace lathe
