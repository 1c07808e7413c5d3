// Whole JSON texts: the reader agrees with nlohmann's own parser about every text, its limits hold,
// and each generating route makes a request or an error with words of it.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "server/openai/api_request.h"

namespace {

template <class Json>
void compare(std::string_view text) {
  const Json read = lathe::read_json<Json>(text);
  // nlohmann's parser takes a NUL for the end of the text.
  const bool nul = text.find('\0') != std::string_view::npos;
  const Json want =
      nul ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  // The reader refuses deep values; nlohmann's does not.
  if (!read.is_discarded()) LATHE_CHECK(read == want, "another value than nlohmann's");
  const auto depth = [&] {
    int most = 0, open = 0;
    for (const char c : text) {
      open += c == '[' || c == '{';
      most = std::max(most, open);
      open -= c == ']' || c == '}';
    }
    return most;
  };
  if (read.is_discarded() && !want.is_discarded()) {
    LATHE_CHECK(depth() >= lathe::kMostLevels, "a value that only nlohmann's parser reads");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  compare<nlohmann::json>(text);
  compare<nlohmann::ordered_json>(text);
  try {
    const lathe::JsonLimits limits{.values = data[0], .nodes = data[1]};
    const auto watched = lathe::read_watched_json<nlohmann::ordered_json>(text, limits);
    if (!watched.twice && !watched.too_deep && !watched.too_many) {
      LATHE_CHECK(watched.value == nlohmann::ordered_json::parse(text), "another value");
    }
  } catch (const nlohmann::ordered_json::exception&) {
  }
  for (const auto route :
       {lathe::ApiRoute::chat, lathe::ApiRoute::completions, lathe::ApiRoute::generate}) {
    const auto request = lathe::parse_request(route, text, {});
    LATHE_CHECK(request.ok() || (request.error().status == 400 && !request.error().message.empty()),
                "an error without words");
  }
  return 0;
}
