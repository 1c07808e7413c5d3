// The server's log, on stderr: a line for a request that has ended, for a response, and now and
// then for a step, as text or as JSON. Keys and headers are never in it; texts are at
// --log-requests 3.
#pragma once

#include <string_view>

#include "engine/engine_thread.h"
#include "server/http/http.h"
#include "server/service/live_answer.h"
#include "server/service/options.h"

namespace lathe {

void log_request(const ServerOptions& options, LiveAnswer& answer, double seconds,
                 std::string_view finish);
void log_response(const ServerOptions& options, std::string_view method, std::string_view path,
                  std::string_view id, int status, double seconds);
/// SGLang's line for decode steps.
void log_decode(const ServerOptions& options, const EngineNews& news);

}  // namespace lathe
