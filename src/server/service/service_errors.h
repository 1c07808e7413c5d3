// Errors of requests that the server cannot serve.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "server/openai/api_error.h"

namespace lathe {

inline ApiError unavailable(std::string_view code, std::string message) {
  return {503, code, std::move(message), ""};
}

inline ApiError no_memory() { return {500, "engine_error", "the server is out of memory", ""}; }

}  // namespace lathe
