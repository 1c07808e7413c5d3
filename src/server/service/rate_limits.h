// RateLimits: requests and tokens a minute of each API key.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "server/http/http.h"
#include "server/openai/api_error.h"
#include "server/service/access.h"

namespace lathe {

/// A key has a minute's requests and tokens at most, and gets them back evenly. The admin key has
/// no limits.
class RateLimits {
 public:
  using Clock = std::chrono::steady_clock;

  /// 0: no limit.
  RateLimits(std::int64_t requests_per_minute, std::int64_t tokens_per_minute)
      : requests_{static_cast<double>(requests_per_minute)},
        tokens_{static_cast<double>(tokens_per_minute)} {}

  /// Takes a request with at most `tokens` tokens, of its prompt and its answer: the tokens
  /// charged. A request for more than a minute's tokens needs all of them and leaves a debt, which
  /// later requests wait for. Errors: 429, with the seconds to wait.
  Result<std::int64_t, ApiError> take(const Caller& caller, std::int64_t tokens,
                                      Clock::time_point now);
  /// Returns charged tokens that a request did not use.
  void give_back(const Caller& caller, std::int64_t tokens);
  /// x-ratelimit-limit-requests, -remaining-requests, -reset-requests, and -tokens.
  std::vector<HttpHeader> headers(const Caller& caller, Clock::time_point now);

 private:
  struct Allowance {
    double requests = 0, tokens = 0;  // left; below 0: a debt
    Clock::time_point since;          // when they were that
  };
  bool limits(const Caller& caller) const {
    return (requests_ > 0 || tokens_ > 0) && caller.key.has_value();
  }
  Allowance& renewed(const Caller& caller, Clock::time_point now);

  double requests_, tokens_;               // a minute
  std::map<std::size_t, Allowance> left_;  // by key
};

}  // namespace lathe
