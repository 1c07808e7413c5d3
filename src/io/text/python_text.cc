#include "io/text/python_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

namespace lathe {
namespace {

struct CaseRun {  // code points first, first + step, ... last map to themselves + delta
  std::int32_t first, last, step, delta;
};
struct CaseSeveral {
  std::int32_t code;
  const char* mapped;  // UTF-8 of several code points
};
struct CodeRange {
  std::int32_t first, last;
};
#include "io/text/unicode_tables.inc"

struct Decoded {
  std::int32_t code = -1;  // -1: a byte that is not UTF-8
  std::size_t size = 1;
};

Decoded decode(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {static_cast<std::int32_t>(first), 1};
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || s.size() < size) return {};
  std::int32_t code = static_cast<std::int32_t>(first & (0x7fu >> size));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::int32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[size] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {code, size};
}

void append_utf8(std::string& out, std::uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

bool is_space(std::int32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool is_line_end(std::int32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool contains(std::span<const CodeRange> ranges, std::int32_t c) {
  const auto it = std::ranges::upper_bound(ranges, c, {}, &CodeRange::first);
  return it != ranges.begin() && c <= std::prev(it)->last;
}

// The last character of s, which is not empty.
Decoded decode_last(std::string_view s) {
  for (std::size_t size = 1; size <= 4 && size <= s.size(); ++size) {
    const Decoded d = decode(s.substr(s.size() - size));
    if (d.code >= 0 && d.size == size) return d;
  }
  return {};
}

bool is_one_of(std::string_view character, std::string_view chars) {
  for (std::size_t i = 0; i < chars.size();) {
    const std::size_t n = decode(chars.substr(i)).size;
    if (chars.substr(i, n) == character) return true;
    i += n;
  }
  return false;
}

void append_mapped(std::string& out, std::string_view character, std::int32_t code,
                   std::span<const CaseRun> runs, std::span<const CaseSeveral> several) {
  auto it = std::ranges::upper_bound(runs, code, {}, &CaseRun::first);
  // Runs of step 2 interleave, so a code's run may be a few entries back.
  for (int back = 0; back < 3 && it != runs.begin(); ++back) {
    --it;
    if (code <= it->last && (code - it->first) % it->step == 0) {
      append_utf8(out, static_cast<std::uint32_t>(code + it->delta));
      return;
    }
  }
  const auto s = std::ranges::lower_bound(several, code, {}, &CaseSeveral::code);
  if (s != several.end() && s->code == code) {
    out += s->mapped;
  } else {
    out += character;
  }
}

enum class Case { upper, lower, title };

void append_case(std::string& out, std::string_view character, Case wanted) {
  const std::int32_t code = decode(character).code;
  if (code < 0x80) {
    char c = character[0];
    if (wanted == Case::lower && c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    if (wanted != Case::lower && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
    out += c;
  } else if (wanted == Case::upper) {
    append_mapped(out, character, code, kUpperRuns, kUpperSeveral);
  } else if (wanted == Case::lower) {
    append_mapped(out, character, code, kLowerRuns, kLowerSeveral);
  } else {
    append_mapped(out, character, code, kTitleRuns, kTitleSeveral);
  }
}

bool is_cased(std::int32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return contains(kCased, c);
}

template <class Body>
void each_character(std::string_view s, Body&& body) {
  for (std::size_t i = 0; i < s.size();) {
    const Decoded d = decode(s.substr(i));
    body(s.substr(i, d.size), d.code);
    i += d.size;
  }
}

}  // namespace

std::optional<std::string> unescape(std::string_view body) {
  std::string out;
  const auto number = [&](std::size_t from, std::size_t count) -> std::optional<std::uint32_t> {
    std::uint32_t v = 0;
    if (from + count > body.size()) return std::nullopt;
    const char* end = body.data() + from + count;
    const auto r = std::from_chars(body.data() + from, end, v, 16);
    if (r.ec != std::errc() || r.ptr != end || v > 0x10ffff) return std::nullopt;
    return v;
  };
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\' || i + 1 >= body.size()) {
      out += body[i];
      continue;
    }
    const char c = body[++i];
    constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const std::size_t k = kFrom.find(c); k != std::string_view::npos) {
      out += kTo[k];
    } else if (c == '\n') {
      // A line end after a backslash joins the lines.
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const auto v = number(i + 1, count);
      if (!v || (*v >= 0xd800 && *v <= 0xdfff)) return std::nullopt;
      append_utf8(out, *v);
      i += count;
    } else if (c >= '0' && c <= '7') {
      std::uint32_t v = 0;
      std::size_t n = 0;
      for (; n < 3 && i + n < body.size() && body[i + n] >= '0' && body[i + n] <= '7'; ++n) {
        v = v * 8 + static_cast<std::uint32_t>(body[i + n] - '0');
      }
      append_utf8(out, v);
      i += n - 1;
    } else if (c == 'N') {
      return std::nullopt;
    } else {
      out += '\\';
      out += c;
    }
  }
  return out;
}

std::string_view trim_start(std::string_view s, std::optional<std::string_view> chars) {
  while (!s.empty()) {
    const Decoded d = decode(s);
    if (chars ? !is_one_of(s.substr(0, d.size), *chars) : !is_space(d.code)) break;
    s.remove_prefix(d.size);
  }
  return s;
}

std::string_view trim_end(std::string_view s, std::optional<std::string_view> chars) {
  while (!s.empty()) {
    const Decoded d = decode_last(s);
    if (chars ? !is_one_of(s.substr(s.size() - d.size), *chars) : !is_space(d.code)) break;
    s.remove_suffix(d.size);
  }
  return s;
}

std::vector<std::string_view> characters(std::string_view s) {
  std::vector<std::string_view> out;
  each_character(s, [&](std::string_view c, std::int32_t) { out.push_back(c); });
  return out;
}

std::int64_t count_characters(std::string_view s) {
  std::int64_t n = 0;
  each_character(s, [&](std::string_view, std::int32_t) { ++n; });
  return n;
}

bool is_ascii(std::string_view s) {
  return std::ranges::all_of(s, [](char c) { return (c & 0x80) == 0; });
}

std::vector<std::string_view> split_text(std::string_view s,
                                         std::optional<std::string_view> separator,
                                         std::int64_t max, bool from_right) {
  std::vector<std::string_view> out;
  const auto cuts_left = [&] { return max < 0 || static_cast<std::int64_t>(out.size()) < max; };
  if (separator && from_right) {
    for (std::size_t at; cuts_left() && (at = s.rfind(*separator)) != std::string_view::npos;) {
      out.push_back(s.substr(at + separator->size()));
      s = s.substr(0, at);
    }
    out.push_back(s);
    std::ranges::reverse(out);
  } else if (separator) {
    for (std::size_t at; cuts_left() && (at = s.find(*separator)) != std::string_view::npos;) {
      out.push_back(s.substr(0, at));
      s.remove_prefix(at + separator->size());
    }
    out.push_back(s);
  } else if (from_right) {
    for (s = trim_end(s); !s.empty(); s = trim_end(s)) {
      if (!cuts_left()) {
        out.push_back(s);
        break;
      }
      std::size_t n = 0;
      while (n < s.size()) {
        const Decoded d = decode_last(s.substr(0, s.size() - n));
        if (is_space(d.code)) break;
        n += d.size;
      }
      out.push_back(s.substr(s.size() - n));
      s.remove_suffix(n);
    }
    std::ranges::reverse(out);
  } else {
    for (s = trim_start(s); !s.empty(); s = trim_start(s)) {
      if (!cuts_left()) {
        out.push_back(s);
        break;
      }
      std::size_t n = 0;
      while (n < s.size()) {
        const Decoded d = decode(s.substr(n));
        if (is_space(d.code)) break;
        n += d.size;
      }
      out.push_back(s.substr(0, n));
      s.remove_prefix(n);
    }
  }
  return out;
}

std::vector<std::string_view> split_lines(std::string_view s) {
  std::vector<std::string_view> out;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < s.size();) {
    const Decoded d = decode(s.substr(i));
    if (!is_line_end(d.code)) {
      i += d.size;
      continue;
    }
    out.push_back(s.substr(begin, i - begin));
    i += d.code == '\r' && i + 1 < s.size() && s[i + 1] == '\n' ? 2 : d.size;
    begin = i;
  }
  if (begin < s.size()) out.push_back(s.substr(begin));
  return out;
}

std::string to_upper(std::string_view s) {
  std::string out;
  each_character(s, [&](std::string_view c, std::int32_t) { append_case(out, c, Case::upper); });
  return out;
}

std::string to_lower(std::string_view s) {
  std::string out;
  each_character(s, [&](std::string_view c, std::int32_t) { append_case(out, c, Case::lower); });
  return out;
}

std::string to_title(std::string_view s) {
  std::string out;
  bool inside = false;
  each_character(s, [&](std::string_view c, std::int32_t code) {
    append_case(out, c, inside ? Case::lower : Case::title);
    inside = is_cased(code);
  });
  return out;
}

std::string capitalize(std::string_view s) {
  std::string out;
  bool first = true;
  each_character(s, [&](std::string_view c, std::int32_t) {
    append_case(out, c, first ? Case::title : Case::lower);
    first = false;
  });
  return out;
}

std::string repr_text(std::string_view s) {
  const bool doubled =
      s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos;
  const char mark = doubled ? '"' : '\'';
  std::string out(1, mark);
  each_character(s, [&](std::string_view c, std::int32_t code) {
    if (code == '\\' || code == mark) {
      out += '\\';
      out += c;
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if ((code >= 0 && code < 0x20) || code == 0x7f ||
               (code >= 0x80 && contains(kNotPrintable, code))) {
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    } else {
      out += c;
    }
  });
  out += mark;
  return out;
}

std::string repr_real(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer{};
  auto* const end = buffer.data() + buffer.size();
  const auto r = std::to_chars(buffer.data(), end, v, std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<std::size_t>(r.ptr - buffer.data()));
  int exponent = 0;
  const char* digits = text.data() + text.find('e') + 1;
  if (*digits == '+') ++digits;
  std::from_chars(digits, r.ptr, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed = std::to_chars(buffer.data(), end, v, std::chars_format::fixed);
  std::string out(buffer.data(), fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string json_text(std::string_view s, bool ensure_ascii) {
  std::string out = "\"";
  each_character(s, [&](std::string_view c, std::int32_t code) {
    constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    const std::size_t k = c.size() == 1 ? kFrom.find(c[0]) : std::string_view::npos;
    if (k != std::string_view::npos) {
      out += '\\';
      out += kTo[k];
    } else if ((code >= 0 && code < 0x20) || (ensure_ascii && code >= 0x80 && code < 0x10000)) {
      out += fmt::format("\\u{:04x}", code);
    } else if (ensure_ascii && code >= 0x10000) {
      const std::int32_t rest = code - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
    } else {
      out += c;
    }
  });
  out += '"';
  return out;
}

}  // namespace lathe
