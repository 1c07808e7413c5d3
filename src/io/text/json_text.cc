#include "io/text/json_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

// The number that Python's json module writes and JSON does not have, if the parser stopped at one.
// byte: 1 for the first.
std::string_view python_number(std::string_view text, std::size_t byte) {
  if (byte == 0 || byte > text.size()) return {};
  for (const std::string_view number : {"Infinity", "NaN"}) {
    if (text.substr(byte - 1).starts_with(number)) return number;
  }
  return {};
}

std::string path_in(const std::string& field, const std::string& path) {
  return path.empty() ? field : field + ": " + path;
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& field) {
  using Object = nlohmann::json;
  try {
    auto parsed = read_watched_json<Object>(text);
    if (parsed.too_deep) {
      return Error{ErrorCode::malformed, path_in(field, *parsed.too_deep),
                   fmt::format("at most {} levels", kMostLevels), "more", ""};
    }
    if (parsed.too_large) {
      return Error{ErrorCode::malformed, path_in(field, parsed.too_large->path),
                   "a number that a double can hold", parsed.too_large->digits, ""};
    }
    if (parsed.twice) {
      return Error{ErrorCode::malformed, field, "unique names", quote(*parsed.twice) + " twice",
                   ""};
    }
    return std::move(parsed.value);
  } catch (const Object::parse_error& e) {
    const bool ends = e.byte > text.size();
    if (const std::string_view number = python_number(text, e.byte); !number.empty()) {
      return Error{ErrorCode::malformed, field, "JSON, whose numbers are finite",
                   fmt::format("{} at byte {}", number, e.byte), "write a finite number, or null"};
    }
    return Error{ErrorCode::malformed, field, "valid JSON",
                 ends ? fmt::format("the end after byte {}", text.size())
                      : fmt::format("something else at byte {} of {}", e.byte, text.size()),
                 ""};
  }
}

}  // namespace lathe
