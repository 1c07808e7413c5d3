#include "server/openai/text_offsets.h"

#include <algorithm>

namespace lathe {
namespace {

// A normaliser may have changed the text: how far to look for a token that is not next.
constexpr std::size_t kLookAhead = 16;

bool goes_on(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// Where a token's text ends, if it begins at `at` or soon after.
std::size_t end_of(std::string_view text, std::size_t at, std::string_view token, bool special) {
  if (text.substr(at).starts_with(token)) return at + token.size();
  if (special) return at;
  if (token.starts_with(' ') && text.substr(at).starts_with(token.substr(1))) {
    return at + token.size() - 1;
  }
  const std::size_t found = text.substr(at, kLookAhead + token.size()).find(token);
  if (found != std::string_view::npos) return at + found + token.size();
  return std::min(text.size(), at + token.size());
}

}  // namespace

std::int64_t count_code_points(std::string_view utf8) {
  return std::ranges::count_if(utf8, [](char c) { return !goes_on(c); });
}

std::int64_t TextOffsets::next(std::int32_t token) {
  const std::int64_t before = at_;
  at_ += count_code_points(detokenizer_.push(token));
  return before + (detokenizer_.gave_up() ? 1 : 0);
}

std::vector<std::int64_t> offsets_in(std::string_view text, std::span<const std::int32_t> tokens,
                                     const Tokenizer& tokenizer) {
  std::vector<std::int64_t> out;
  std::size_t at = 0;
  std::int64_t points = 0;  // that begin before `at`
  for (const std::int32_t token : tokens) {
    const bool inside = at < text.size() && goes_on(text[at]);
    out.push_back(points - (inside ? 1 : 0));
    if (!tokenizer.has(token)) continue;
    const std::size_t end =
        end_of(text, at, tokenizer.bytes_of(token), tokenizer.is_special(token));
    points += count_code_points(text.substr(at, end - at));
    at = end;
  }
  return out;
}

}  // namespace lathe
