#include "base/json_limit.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"

namespace lathe {

std::optional<Error> find_json_limit(std::string_view text, const std::string& path) {
  const auto fault = [&](const std::string& inside, std::string wanted, std::string got) {
    const bool dot = !inside.empty() && inside[0] != '[';
    return Error{ErrorCode::malformed, path + (dot ? "." : "") + inside, std::move(wanted),
                 std::move(got), ""};
  };
  try {
    const auto read = read_watched_json<nlohmann::ordered_json>(text);
    if (read.too_deep) {
      return fault(*read.too_deep, "at most " + std::to_string(kMostLevels) + " levels", "more");
    }
    if (read.too_large) {
      return fault(read.too_large->path, "a number that a double can hold", read.too_large->digits);
    }
  } catch (const nlohmann::ordered_json::exception&) {  // no JSON
  }
  return std::nullopt;
}

}  // namespace lathe
