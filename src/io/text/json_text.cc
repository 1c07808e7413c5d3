#include "io/text/json_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/text/quote.h"

namespace lathe {

Result<nlohmann::json> parse_json(std::string_view text, const std::string& field) {
  using Object = nlohmann::json;
  try {
    auto parsed = read_watched_json<Object>(text);
    if (parsed.too_deep) {
      return Error{ErrorCode::malformed, field, fmt::format("at most {} levels", kMostLevels),
                   "more", ""};
    }
    if (parsed.twice) {
      return Error{ErrorCode::malformed, field, "unique names", quote(*parsed.twice) + " twice",
                   ""};
    }
    return std::move(parsed.value);
  } catch (const Object::parse_error& e) {
    const bool ends = e.byte > text.size();
    return Error{ErrorCode::malformed, field, "valid JSON",
                 ends ? fmt::format("the end after byte {}", text.size())
                      : fmt::format("something else at byte {} of {}", e.byte, text.size()),
                 ""};
  } catch (const Object::exception& e) {  // a number beyond double
    return Error{ErrorCode::malformed, field, "valid JSON", e.what(), ""};
  }
}

}  // namespace lathe
