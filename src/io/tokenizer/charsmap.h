// SentencePiece's precompiled table of replacements of characters (normalizer `Precompiled`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

/// A trie from UTF-8 to replacements. The file's bytes are the trie's size in bytes (u32, little
/// endian), the trie (a Darts double array of u32 units), and the replacements, each of which ends
/// in a zero byte.
class Charsmap {
 public:
  /// Nothing if the sizes do not fit, the trie is empty or the replacements are not UTF-8.
  static std::optional<Charsmap> parse(std::string_view bytes);

  /// Appends the normalised text to `out`, and stops early once it has more than `most` bytes. As
  /// in the library: a grapheme cluster of less than 6 bytes has the replacement of its shortest
  /// prefix in the trie; otherwise each of its characters has, or stays as it is.
  void apply(std::string_view text, std::size_t most, std::string& out) const;

 private:
  std::optional<std::string_view> replacement(std::string_view part) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace lathe
