#include "io/tokenizer/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "io/text/python_text.h"
#include "io/text/utf8.h"

namespace lathe {
namespace {

// NFKD grows a character at most 18 times, and known normalizers prepend a mark and replace spaces.
constexpr std::size_t kMostNormalizedGrowth = 64;
constexpr std::size_t kMostNormalizedBytes = 4096;  // bytes

struct Range {
  char32_t first;
  char32_t last;
};

// Ranges that NFC leaves unchanged next to each other (NFC_Quick_Check is Yes, combining class 0):
// text of the common scripts and emoji skips normalisation.
constexpr std::array kNfcInert = {
    Range{0x0000, 0x02FF},    // Latin
    Range{0x0400, 0x0482},    // Cyrillic
    Range{0x200B, 0x2027},    // joiners, punctuation
    Range{0x3001, 0x3029},    // CJK punctuation
    Range{0x3041, 0x3096},    // Hiragana
    Range{0x30A1, 0x30FE},    // Katakana
    Range{0x3400, 0x4DBF},    // CJK extension A
    Range{0x4E00, 0x9FFF},    // CJK
    Range{0xAC00, 0xD7A3},    // Hangul syllables, without the jamo that could combine with them
    Range{0xFE0F, 0xFE0F},    // emoji variation selector
    Range{0xFF01, 0xFF9D},    // full-width forms
    Range{0x1F300, 0x1FAFF},  // emoji
};

bool is_nfc_inert(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_front(text.substr(at));
    at += static_cast<std::size_t>(c.size);
    if (c.code < kNfcInert[0].last) continue;
    const bool inert = std::any_of(kNfcInert.begin(), kNfcInert.end(), [&](const Range& r) {
      return c.code >= r.first && c.code <= r.last;
    });
    if (!inert) return false;
  }
  return true;
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Canonical ordering: a stable sort of each run of marks. utf8proc's own bubble sort is quadratic
// on long runs.
void order_marks(std::vector<utf8proc_int32_t>& chars) {
  const auto is_starter = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
  for (auto at = chars.begin(); at != chars.end();) {
    const auto begin = std::find_if_not(at, chars.end(), is_starter);
    const auto end = std::find_if(begin, chars.end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    at = end;
  }
}

void normal_form(NormalizerKind kind, std::string_view text, std::string& out) {
  const bool compatible = kind == NormalizerKind::NFKC || kind == NormalizerKind::NFKD;
  const bool compose = kind == NormalizerKind::NFC || kind == NormalizerKind::NFKC;
  const int options =
      UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible ? int{UTF8PROC_COMPAT} : 0);
  std::vector<utf8proc_int32_t> chars;
  chars.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_front(text.substr(at));
    at += static_cast<std::size_t>(c.size);
    std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18
    int boundary = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code), parts.data(), parts.size(),
                                static_cast<utf8proc_option_t>(options), &boundary);
    LATHE_CHECK(n >= 0 && n <= static_cast<utf8proc_ssize_t>(parts.size()), "decomposition");
    chars.insert(chars.end(), parts.begin(), parts.begin() + n);
  }
  order_marks(chars);
  utf8proc_ssize_t size = static_cast<utf8proc_ssize_t>(chars.size());
  if (compose) {
    size = utf8proc_normalize_utf32(
        chars.data(), size, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    LATHE_CHECK(size >= 0, "composition");
  }
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    append_utf8(out, static_cast<char32_t>(chars[static_cast<std::size_t>(i)]));
  }
}

// Per character, like Rust's char::to_lowercase: no final sigma, and U+0130 becomes two.
void lower_case(std::string_view text, std::string& out) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_front(text.substr(at));
    at += static_cast<std::size_t>(c.size);
    if (c.code == 0x130) {
      out.append("i\xCC\x87");
    } else {
      append_utf8(out,
                  static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code))));
    }
  }
}

}  // namespace

Result<std::string_view> Normalizer::apply(std::string_view text, std::string& buffer) const {
  const std::size_t most = kMostNormalizedGrowth * text.size() + kMostNormalizedBytes;
  std::string other;  // receives a step's result while `text` may still be in `buffer`
  for (const Step& step : steps_) {
    other.clear();
    switch (step.kind) {
      case NormalizerKind::NFC:
        if (is_nfc_inert(text)) continue;
        normal_form(step.kind, text, other);
        break;
      case NormalizerKind::NFD:
      case NormalizerKind::NFKC:
      case NormalizerKind::NFKD:
        if (is_ascii(text)) continue;
        normal_form(step.kind, text, other);
        break;
      case NormalizerKind::Lowercase:
        lower_case(text, other);
        break;
      case NormalizerKind::Prepend:
        if (text.empty()) continue;
        other.append(step.text).append(text);
        break;
      case NormalizerKind::Replace: {
        Regex::Match match;
        for_each_part(*step.regex, text, match,
                      [&](std::size_t begin, std::size_t end, bool is_match) {
                        if (other.size() > most) return;  // the error follows
                        other.append(is_match ? step.text : text.substr(begin, end - begin));
                      });
        if (match.stopped()) return search_stopped("normalizer");
        break;
      }
      case NormalizerKind::Precompiled:
        step.charsmap->apply(text, most, other);
        break;
    }
    if (other.size() > most) {
      return Error{ErrorCode::exhausted, "normalizer",
                   fmt::format("at most {} bytes for this text", most), "more", ""};
    }
    buffer.swap(other);
    text = buffer;
  }
  return text;
}

}  // namespace lathe
