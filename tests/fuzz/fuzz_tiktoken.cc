// tiktoken.model and tokenizer_config.json: any text is a tokenizer's description or an error. The
// configuration follows the first NUL byte.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "io/tokenizer/tiktoken.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const std::string_view config =
      end == std::string_view::npos ? std::string_view() : input.substr(end + 1);
  const auto read = lathe::read_tiktoken(input.substr(0, end), config);
  if (!read) {
    LATHE_CHECK(!read.error().message().empty(), "an error without words");
    return 0;
  }
  LATHE_CHECK(read->added_tokens.size() == 256, "the ids after the last rank");
  return 0;
}
