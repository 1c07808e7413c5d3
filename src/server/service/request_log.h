// The server's log on stderr: a line per finished request, per response, and for some steps, as
// text or JSON. Never contains API keys or headers; contains texts at --log-requests 3.
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
