// Sends requests for streamed answers to a server of OpenAI's routes at given times, and notes when
// their parts arrive.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace lathe {

/// Where to send requests: http://host:port and the path before /v1.
struct ServeTarget {
  std::string host;
  int port = 80;
  std::string prefix;   // "" or "/some/path"
  std::string api_key;  // empty: none

  /// Errors: not http://HOST[:PORT][/PATH]; https.
  static Result<ServeTarget> parse(const std::string& base_url);
};

struct ServeRequest {
  std::string body;  // JSON
  double due = 0;    // [s] since the start
};

/// What became of a request. Times are in seconds since the start.
struct ServeRecord {
  double sent = 0;
  double first = 0;  // the first event of the answer
  double ended = 0;
  std::vector<double> gaps;        // between parts
  std::int64_t parts = 0;          // events with text, reasoning or a call
  std::int64_t input_tokens = 0;   // by the server's usage; 0 without
  std::int64_t output_tokens = 0;  // by the server's usage, or else its parts
  std::string text;
  std::string error;  // empty: complete
};

/// Sends each request when it is due, at most `most` at once (0: any number); those that are due
/// and have to wait are sent in order. Connections are reused. `progress` gets the number of
/// requests that have ended, now and then.
std::vector<ServeRecord> send_requests(const ServeTarget& target, const std::string& path,
                                       const std::vector<ServeRequest>& requests, std::int64_t most,
                                       const std::function<void(std::size_t)>& progress);

/// Sends one request and waits for the whole answer: its body. Errors: no answer; a status other
/// than 200, with the body.
Result<std::string> ask_server(const ServeTarget& target, std::string_view method,
                               const std::string& path, const std::string& body);

/// Waits until the server is ready, at most `seconds`: until it answers /health, be it with 404,
/// but not with 502 to 504, which proxies send, too. Returns what came last if it is not ready by
/// then. `on_wait` gets what came first. A host without an address is not waited for.
std::optional<std::string> wait_for_server(const ServeTarget& target, std::int64_t seconds,
                                           const std::function<void(const std::string&)>& on_wait);

}  // namespace lathe
