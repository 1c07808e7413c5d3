// Layout deserialisation: any text is a layout or an error; a layout survives its own
// serialisation, and its sizes are sane.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "layout/layout.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using lathe::CacheLayout;
  const auto layout = CacheLayout::parse({reinterpret_cast<const char*>(data), size});
  if (!layout) {
    LATHE_CHECK(!layout.error().message().empty(), "an error without words");
    return 0;
  }
  const auto back = CacheLayout::parse(layout->serialize());
  LATHE_CHECK(back.ok() && *back == *layout, layout->serialize());
  LATHE_CHECK(back->hash() == layout->hash(), layout->serialize());
  for (int page_size : {1, 64, lathe::kMaxPageSize}) {
    const std::int64_t stride = layout->page_stride(page_size);
    LATHE_CHECK(stride >= std::int64_t{page_size} * layout->bytes_per_token(), "stride too small");
    for (int i = 0; i < layout->part_count(); ++i) {
      const lathe::Part& part = layout->part(i);
      const std::int64_t end = layout->offset_of(part, page_size, page_size - 1) + part.bytes();
      LATHE_CHECK(end <= stride, "a part leaves the page");
    }
  }
  return 0;
}
