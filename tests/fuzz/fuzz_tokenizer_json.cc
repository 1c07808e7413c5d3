// tokenizer.json: any text is a tokenizer or an error. What follows the first NUL byte is text to
// encode, and so is the JSON itself. Streaming gives whole characters, and decode() UTF-8.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "io/text/utf8.h"
#include "io/tokenizer/tokenizer.h"

namespace {

void encode(const lathe::Tokenizer& tokenizer, std::string_view text) {
  const auto encoded = tokenizer.encode(text, /*add_special_tokens=*/true);
  if (!encoded) {
    LATHE_CHECK(!encoded.error().message().empty(), "an error without words");
    return;
  }
  const std::vector<std::int32_t>& ids = *encoded;
  lathe::Detokenizer stream = tokenizer.detokenizer();
  std::size_t streamed = 0;
  for (const std::int32_t id : ids) {
    LATHE_CHECK(id >= 0, "a negative id");
    const std::string part = stream.push(id);
    LATHE_CHECK(lathe::utf8_valid_prefix(part) == part.size(), "a part of a character");
    streamed += part.size();
  }
  streamed += stream.flush().size();
  const std::string decoded = tokenizer.decode(ids);
  LATHE_CHECK(lathe::utf8_valid_prefix(decoded) == decoded.size(), "decode() gave no UTF-8");
  LATHE_CHECK(streamed == 0 || !decoded.empty(), "decode() dropped what the stream gave");
  static_cast<void>(tokenizer.decode_bytes(ids, /*skip_special_tokens=*/true));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const std::string_view json = input.substr(0, end);
  const auto tokenizer = lathe::Tokenizer::parse(json);
  if (!tokenizer) {
    LATHE_CHECK(!tokenizer.error().message().empty(), "an error without words");
    return 0;
  }
  encode(*tokenizer, json);
  if (end != std::string_view::npos) encode(*tokenizer, input.substr(end + 1));
  return 0;
}
