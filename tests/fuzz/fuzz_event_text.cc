// Text and numbers of events: any bytes become one line of JSON that reads back as the same text,
// with U+FFFD for what is not UTF-8; any double reads back as itself.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/openai/json_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::string line;
  lathe::append_json_string(line, text);
  LATHE_CHECK(line.find_first_of("\r\n") == std::string::npos, "an event of several lines");
  LATHE_CHECK(line.find("\u2028") == std::string::npos && line.find("\u2029") == std::string::npos,
              "a line separator");
  const auto read = nlohmann::json::parse(line).get<std::string>();
  // An independent writer, which replaces what is not UTF-8 likewise.
  const std::string other =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  LATHE_CHECK(read == nlohmann::json::parse(other).get<std::string>(), "text that changes");
  double value = 0;
  if (size < sizeof value) return 0;
  std::memcpy(&value, data, sizeof value);
  std::string number;
  lathe::append_json_number(number, value);
  const auto back = nlohmann::json::parse(number).get<double>();
  LATHE_CHECK(std::isfinite(value) ? back == value : std::abs(back) == 9999, "another number");
  return 0;
}
