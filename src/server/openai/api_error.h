// ApiError: a rejected request's status and OpenAI error object.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/http/http.h"

namespace lathe {

struct ApiError {
  int status = 400;
  std::string_view code = "invalid_value";  // a word of docs/server.md, static
  std::string message;
  std::string param;    // path of the field ("messages[2].content"); empty: none
  int retry_after = 0;  // of 429: seconds

  /// OpenAI's error type, such as "invalid_request_error"; it follows from status and code.
  std::string_view type() const;
  /// {"error":{"message","type","param","code"}}
  std::string body() const;
  HttpResponse response() const;
};

/// An invalid field: 400 invalid_value with Error::message()'s words.
ApiError bad_field(std::string path, std::string wanted, std::string got, std::string hint = "");
/// From an Error; its field is the path.
ApiError bad_field(const Error& error);

}  // namespace lathe
