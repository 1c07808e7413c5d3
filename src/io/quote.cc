#include "io/quote.h"

#include <nlohmann/json.hpp>

namespace lathe {

std::string quote(std::string_view text, std::size_t max) {
  const bool cut = text.size() > max;
  const nlohmann::json j = std::string(text.substr(0, max)) + (cut ? "..." : "");
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lathe
