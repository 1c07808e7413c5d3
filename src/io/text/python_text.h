// Python's string operations over UTF-8, for Jinja's filters, str methods and repr(). A byte that
// is not UTF-8 counts as one character and is kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

/// The string of a literal with escapes, or nullopt if one is incomplete or unsupported (\N{...}).
std::optional<std::string> unescape(std::string_view body);

/// Strips leading (trailing) characters in `chars`, by default Unicode white space.
std::string_view trim_start(std::string_view s, std::optional<std::string_view> chars = {});
std::string_view trim_end(std::string_view s, std::optional<std::string_view> chars = {});

/// Characters (code points) of s, each a view into it.
std::vector<std::string_view> characters(std::string_view s);
std::int64_t count_characters(std::string_view s);
bool is_ascii(std::string_view s);

/// str.split(), by default on white space; `separator` is not empty. At most `max` cuts if max >=
/// 0, from the right with `from_right`.
std::vector<std::string_view> split_text(std::string_view s,
                                         std::optional<std::string_view> separator,
                                         std::int64_t max, bool from_right = false);
/// str.splitlines().
std::vector<std::string_view> split_lines(std::string_view s);

std::string to_upper(std::string_view s);
std::string to_lower(std::string_view s);
/// str.title(): letters after a cased one become lower case, others title case.
std::string to_title(std::string_view s);
/// str.capitalize().
std::string capitalize(std::string_view s);

/// repr() of a str.
std::string repr_text(std::string_view s);
/// repr() of a float: the shortest digits that read back, with an exponent from 1e+16 and below
/// 1e-04.
std::string repr_real(double v);

/// A JSON string with quotes, as written by Python's json.dumps.
std::string json_text(std::string_view s, bool ensure_ascii);

}  // namespace lathe
