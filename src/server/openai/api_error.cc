#include "server/openai/api_error.h"

#include "server/openai/json_writer.h"

namespace lathe {

std::string_view ApiError::type() const {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 503:
      return "service_unavailable";
    default:
      return "invalid_request_error";
  }
}

std::string ApiError::body() const {
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("error").begin_object();
  json.key("message").string(message).key("type").string(type()).key("param");
  if (param.empty()) {
    json.null();
  } else {
    json.string(param);
  }
  json.key("code").string(code).end_object().end_object();
  return out;
}

HttpResponse ApiError::response() const {
  HttpResponse out;
  out.status = status;
  out.body = body();
  if (status == 401) out.headers.push_back({"WWW-Authenticate", "Bearer"});
  if (status == 429) out.headers.push_back({"Retry-After", std::to_string(retry_after)});
  if (status == 503) {
    out.headers.push_back({"Retry-After", code == "draining" ? "5" : "1"});
    out.headers.push_back({"x-should-retry", "true"});
  }
  return out;
}

ApiError bad_field(std::string path, std::string wanted, std::string got, std::string hint) {
  return bad_field(Error{ErrorCode::invalid_argument, std::move(path), std::move(wanted),
                         std::move(got), std::move(hint)});
}

ApiError bad_field(const Error& error) {
  return {400, "invalid_value", error.message(), error.field};
}

}  // namespace lathe
