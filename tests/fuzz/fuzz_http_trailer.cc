// A chunked body's chunks, extensions and trailer, after a head of our own: whatever they are, the
// head's fields are the request's only ones, and no byte beyond the limits is kept.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "http_scene.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string bytes =
      "POST /first HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" +
      std::string(rest);
  const fuzz::Scene whole = fuzz::run(bytes, 4096);
  const fuzz::Scene cut = fuzz::run(bytes, 1 + data[0] % 61);
  LATHE_CHECK(whole.requests == cut.requests, "requests that depend on how their bytes are cut");
  LATHE_CHECK(whole.requests.size() <= 1, "a request behind the last one");
  LATHE_CHECK(whole.most_body_bytes <= 1000 && cut.most_body_bytes <= 1000,
              "a body beyond its limit");
  const std::string_view head =
      "POST /first? host: h\ntransfer-encoding: chunked\nconnection: close\n";
  for (const std::string& request : whole.requests) {
    LATHE_CHECK(request.starts_with(head), "other headers than the head's");
    LATHE_CHECK(request.size() - head.size() <= 1000, "a trailer that became a body");
  }
  return 0;
}
