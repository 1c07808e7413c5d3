// Bytes of a connection: whatever they are and however they are cut, the same requests come out of
// them, within the limits, and each gets an answer or the connection ends.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "http_scene.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const fuzz::Scene whole = fuzz::run(bytes, 4096);
  const fuzz::Scene cut = fuzz::run(bytes, 1 + data[0] % 61);
  LATHE_CHECK(whole.requests == cut.requests, "requests that depend on how their bytes are cut");
  LATHE_CHECK(whole.answers.empty() || whole.answers.starts_with("HTTP/1.1 "), "no answer");
  return 0;
}
