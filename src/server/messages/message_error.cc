#include "server/messages/message_error.h"

#include "server/openai/json_writer.h"

namespace lathe::anthropic {
namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::string error_body(const ApiError& error, std::string_view request_id) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("type").string("error").key("error").begin_object();
  json.key("type").string(type_of(error.status)).key("message").string(error.message);
  json.end_object();
  if (!request_id.empty()) json.key("request_id").string(request_id);
  json.end_object();
  return out;
}

}  // namespace lathe::anthropic
