#include "io/tokenizer/decoder.h"

#include <algorithm>
#include <charconv>

#include "io/tokenizer/byte_level.h"

namespace lathe {
namespace {

// Known decoders replace a mark of three bytes by a space.
constexpr std::size_t kMostGrowth = 64;
constexpr std::size_t kMostAdded = 4096;  // bytes

// Stops soon after `most` bytes.
std::string replace(const Decoder::ReplaceStep& step, std::string_view token, std::size_t most) {
  std::string out;
  Regex::Match match;
  for_each_part(step.regex, token, match, [&](std::size_t begin, std::size_t end, bool is_match) {
    if (out.size() > most) return;
    out.append(is_match ? step.content : token.substr(begin, end - begin));
  });
  return out;
}

std::string replace_marks(const Decoder::MetaspaceStep& step, std::string_view token, bool first) {
  std::string out;
  while (!token.empty()) {
    const std::size_t at = std::min(token.find(step.character), token.size());
    out.append(token.substr(0, at));
    if (at == token.size()) break;
    if (!(first && step.drops)) out.push_back(' ');
    token.remove_prefix(at + step.character.size());
  }
  return out;
}

std::string strip(const Decoder::StripStep& step, std::string_view token) {
  const std::string& c = step.character;
  for (std::int32_t n = 0; n < step.start && token.starts_with(c); ++n)
    token.remove_prefix(c.size());
  for (std::int32_t n = 0; n < step.stop && token.ends_with(c); ++n) token.remove_suffix(c.size());
  return std::string(token);
}

// Parses "<0xHH>".
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const char* end = token.data() + 5;
  if (std::from_chars(token.data() + 3, end, value, 16).ptr != end) return std::nullopt;
  return static_cast<char>(value);
}

}  // namespace

bool Decoder::has_first() const {
  return std::ranges::any_of(steps, [](const auto& step) {
    const auto* marks = std::get_if<MetaspaceStep>(&step);
    return marks != nullptr && marks->drops;
  });
}

std::optional<std::string> Decoder::apply(std::string_view token, bool first) const {
  const std::size_t most = kMostGrowth * token.size() + kMostAdded;
  if (byte_level) return byte_level_bytes(token).value_or(std::string(token));
  std::string out(token);
  for (const auto& step : steps) {
    if (const auto* replacement = std::get_if<ReplaceStep>(&step)) {
      out = replace(*replacement, out, most);
    } else if (const auto* marks = std::get_if<MetaspaceStep>(&step)) {
      out = replace_marks(*marks, out, first);
    } else {
      out = strip(std::get<StripStep>(step), out);
    }
    if (out.size() > most) return std::nullopt;
  }
  return out;
}

TokenTexts decode_vocabulary(const Decoder& decoder, const std::vector<std::string>& tokens,
                             std::vector<bool> special) {
  TokenTexts texts;
  texts.bytes = decoder.byte_level;
  texts.spaced = decoder.none;
  texts.strip = decoder.text_strip.character;
  texts.strip_count = decoder.text_strip.start;
  texts.special = std::move(special);
  texts.known.resize(tokens.size());
  texts.is_byte.resize(tokens.size());
  texts.pieces.reserve(tokens.size());
  if (decoder.has_first()) texts.firsts.resize(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    texts.known[id] = !tokens[id].empty();
    if (decoder.has_first()) texts.firsts[id] = decoder.apply(tokens[id], true).value_or("");
    auto decoded = decoder.apply(tokens[id]);
    texts.too_long |= !decoded;
    std::string piece = std::move(decoded).value_or("");
    if (decoder.byte_fallback) {
      if (const auto byte = fallback_byte(piece)) {
        piece = *byte;
        texts.is_byte[id] = true;
        if (decoder.has_first()) texts.firsts[id] = piece;
      }
    }
    texts.pieces.push_back(std::move(piece));
  }
  return texts;
}

}  // namespace lathe
