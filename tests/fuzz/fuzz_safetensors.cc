// Safetensors headers: any bytes are a header or an error; every tensor of a header lies inside the
// file and apart from the others.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "io/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = lathe::parse_safetensors_header(std::as_bytes(std::span(data, size)));
  if (!header) {
    LATHE_CHECK(!header.error().message().empty(), "an error without words");
    return 0;
  }
  std::int64_t last = 8;
  for (const lathe::SafetensorsEntry& t : header->tensors) {
    LATHE_CHECK(t.begin <= t.end && t.end <= static_cast<std::int64_t>(size), "outside the file");
    LATHE_CHECK(t.begin == t.end || t.begin >= last, "shared bytes");
    if (t.begin < t.end) last = t.end;
    std::int64_t bits = bits_of(t.dtype);
    for (const std::int64_t d : t.shape) {
      LATHE_CHECK(d >= 0, "a negative size");
      if (d == 0) bits = 0;
      if (bits != 0) bits *= d;
    }
    LATHE_CHECK(bits == (t.end - t.begin) * 8, "bytes that are not the shape's");
  }
  return 0;
}
