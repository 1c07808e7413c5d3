// Answers of other servers, as the load client reads them: the same bodies however the bytes come.
// The first byte is the pieces' length.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "tools/bench/server/http_reader.h"

namespace {

// Status and body of each answer, up to bytes that are not HTTP.
std::string read(std::string_view text, std::size_t piece) {
  lathe::HttpReader reader;
  std::string body, all;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    if (!reader.read(text.substr(at, piece), body)) return all + "bad";
    if (reader.done()) {
      all += std::to_string(reader.status()) + (reader.keeps() ? "k" : "c") + body;
      return all;
    }
  }
  if (!reader.closed()) return all + "cut";
  return all + std::to_string(reader.status()) + body;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string bytes = read(text, 1);
  const std::string pieces = read(text, 1 + data[0] % 16u);
  LATHE_CHECK(!pieces.empty() && !bytes.empty(), "an answer of nothing");
  // A piece may hold more than the answer, which is refused.
  if (pieces != "bad") LATHE_CHECK(bytes == pieces, "a cut that shows");
  return 0;
}
