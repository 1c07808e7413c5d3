#include "io/text/quote.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace lathe {

std::string quote(std::string_view text, std::size_t max) {
  const bool cut = text.size() > max;
  return json_text(std::string(text.substr(0, max)) + (cut ? "..." : ""));
}

}  // namespace lathe
