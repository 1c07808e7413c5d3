// Layout: a KV cache's byte layout, as a value.
#pragma once

#include <lathe/lathe.h>
#include <lathe/result.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lathe {
inline namespace api {

class Layout {
 public:
  /// text: "mla_fp8_block", or with parameters "mla_fp8_block(nope=256,scale=raw_f32)".
  static Result<Layout> parse(const std::string& text) {
    lathe_layout* made = nullptr;
    const lathe_status status = lathe_layout_parse(text.c_str(), &made);
    if (status != LATHE_OK) return last_error(status);
    return Layout(made);
  }
  /// Owns `made` and frees it.
  explicit Layout(lathe_layout* made) : handle_(made, &lathe_layout_free) {}

  std::string text() const { return lathe_layout_text(handle_.get()); }
  std::uint64_t hash() const { return lathe_layout_hash(handle_.get()); }
  std::int64_t bytes_per_token() const { return lathe_layout_bytes_per_token(handle_.get()); }
  /// Numbers of one decoded token: the width of rows in encode().
  std::int64_t row_elems() const { return lathe_layout_row_elems(handle_.get()); }
  Result<std::int64_t> page_stride(std::int64_t page_size) const {
    std::int64_t bytes = 0;
    const lathe_status status = lathe_layout_page_stride(handle_.get(), page_size, &bytes);
    if (status != LATHE_OK) return last_error(status);
    return bytes;
  }
  std::vector<lathe_part> parts() const {
    std::vector<lathe_part> out;
    for (std::int32_t i = 0; i < lathe_layout_part_count(handle_.get()); ++i) {
      lathe_part part{};
      part.size = sizeof part;
      lathe_layout_part(handle_.get(), i, &part);
      out.push_back(part);
    }
    return out;
  }
  /// Byte offset, from the start of the page, of a part of the page's token `index`.
  Result<std::int64_t> offset(lathe_part_role role, std::int64_t page_size,
                              std::int64_t index) const {
    std::int64_t bytes = 0;
    const lathe_status status =
        lathe_layout_part_offset(handle_.get(), role, page_size, index, &bytes);
    if (status != LATHE_OK) return last_error(status);
    return bytes;
  }
  const lathe_layout* get() const { return handle_.get(); }
  bool operator==(const Layout& other) const { return text() == other.text(); }

 private:
  // Layouts never change, so copies share one.
  std::shared_ptr<lathe_layout> handle_;
};

}  // namespace api
}  // namespace lathe
