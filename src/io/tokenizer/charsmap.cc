#include "io/tokenizer/charsmap.h"

#include <utf8proc.h>

#include <cstring>

#include "io/text/utf8.h"

namespace lathe {
namespace {

constexpr std::size_t kShortCluster = 6;  // bytes

// A unit of the double array: of a node, its byte and where its children are; of a leaf, its value.
std::uint32_t label_of(std::uint32_t unit) { return unit & (0x80000000u | 0xffu); }
std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1u) != 0; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7fffffffu; }

std::uint32_t little_endian(const char* bytes) {
  std::uint32_t out = 0;
  std::memcpy(&out, bytes, sizeof(out));
  return out;
}

// Bytes of the extended grapheme cluster (UAX 29) at the front of `text`, which is not empty.
std::size_t cluster_size(std::string_view text) {
  Utf8Char c = utf8_front(text);
  auto at = static_cast<std::size_t>(c.size);
  utf8proc_int32_t state = 0;
  while (at < text.size()) {
    const Utf8Char next = utf8_front(text.substr(at));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(c.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state)) {
      break;
    }
    at += static_cast<std::size_t>(next.size);
    c = next;
  }
  return at;
}

}  // namespace

std::optional<Charsmap> Charsmap::parse(std::string_view bytes) {
  constexpr std::size_t kUnit = sizeof(std::uint32_t);
  if (bytes.size() < kUnit) return std::nullopt;
  const std::size_t size = little_endian(bytes.data());
  bytes.remove_prefix(kUnit);
  if (size == 0 || size % kUnit != 0 || size > bytes.size()) return std::nullopt;
  Charsmap out;
  for (std::size_t i = 0; i < size; i += kUnit) {
    out.units_.push_back(little_endian(bytes.data() + i));
  }
  out.replacements_ = bytes.substr(size);
  if (utf8_valid_prefix(out.replacements_) != out.replacements_.size()) return std::nullopt;
  return out;
}

std::optional<std::string_view> Charsmap::replacement(std::string_view part) const {
  std::size_t at = offset_of(units_[0]);
  for (const char c : part) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (byte == 0) break;
    at ^= byte;
    if (at >= units_.size() || label_of(units_[at]) != byte) break;
    const std::uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    const std::size_t begin = at < units_.size() ? value_of(units_[at]) : replacements_.size();
    if (begin >= replacements_.size()) break;
    const std::string_view found = std::string_view(replacements_).substr(begin);
    if ((static_cast<std::uint8_t>(found[0]) & 0xc0u) == 0x80) break;  // within a character
    return found.substr(0, found.find('\0'));
  }
  return std::nullopt;
}

void Charsmap::apply(std::string_view text, std::size_t most, std::string& out) const {
  while (!text.empty() && out.size() <= most) {
    std::string_view cluster = text.substr(0, cluster_size(text));
    text.remove_prefix(cluster.size());
    if (cluster.size() < kShortCluster) {
      if (const auto found = replacement(cluster)) {
        out.append(*found);
        continue;
      }
    }
    while (!cluster.empty() && out.size() <= most) {
      const std::string_view c =
          cluster.substr(0, static_cast<std::size_t>(utf8_front(cluster).size));
      out.append(replacement(c).value_or(c));
      cluster.remove_prefix(c.size());
    }
  }
}

}  // namespace lathe
