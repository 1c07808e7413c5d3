// Regular expressions of a tokenizer.json, written for Oniguruma (Ruby syntax) and run by PCRE2's
// JIT.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace lathe {

/// Translates a pattern in Oniguruma's Ruby syntax to an equivalent PCRE2 pattern. Classes that the
/// libraries define differently (\s, \w, \v, script names) are spelled out. Errors: unsupported,
/// naming a construct without an equivalent.
Result<std::string> translate_regex(std::string_view pattern, const std::string& field);

/// A compiled pattern; immutable, so threads may share it, each with its own Match.
class Regex {
 public:
  /// A search's result and limits; one per thread. Costs two small allocations.
  class Match {
   public:
    Match();
    /// Whether a search has stopped at a limit, so that what it found is not the whole answer.
    bool stopped() const { return stopped_; }

   private:
    friend class Regex;
    struct Free {
      void operator()(pcre2_real_match_data_8* data) const;
      void operator()(pcre2_real_match_context_8* limits) const;
    };
    std::unique_ptr<pcre2_real_match_data_8, Free> data_;
    std::unique_ptr<pcre2_real_match_context_8, Free> limits_;
    bool stopped_ = false;
  };

  /// `field` names the place in errors. Errors: translate_regex()'s; malformed: PCRE2 cannot
  /// compile the pattern.
  static Result<Regex> compile(std::string_view pattern, const std::string& field);
  /// Matches `text` itself.
  static Result<Regex> literal(std::string_view text, const std::string& field);

  /// First match in `text` that begins at `from` or later: [begin, end). `text` is valid UTF-8. A
  /// search of more than 10 million steps finds nothing and sets match.stopped(), which bounds the
  /// time of hostile patterns.
  std::optional<std::pair<std::size_t, std::size_t>> find(std::string_view text, std::size_t from,
                                                          Match& match) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  static Result<Regex> compile_with(std::string_view pattern, unsigned options,
                                    const std::string& field);
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

/// The error of a search that stopped at its limit. `field` names the pattern.
Error search_stopped(const std::string& field);

/// Calls `on_part(begin, end, is_match)` for the matches in `text` and the text between them, in
/// order and without gaps. Empty matches count, except right after another match.
template <class OnPart>
void for_each_part(const Regex& regex, std::string_view text, Regex::Match& match,
                   OnPart&& on_part) {
  std::size_t from = 0;  // where the search continues
  std::size_t done = 0;  // end of the last part
  std::size_t last_match_end = ~std::size_t{0};
  while (from <= text.size()) {
    const auto found = regex.find(text, from, match);
    if (!found) break;
    const auto [begin, end] = *found;
    if (begin == end && end == last_match_end) {
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
      continue;
    }
    if (done != begin) on_part(done, begin, false);
    on_part(begin, end, true);
    from = done = last_match_end = end;
  }
  if (done != text.size()) on_part(done, text.size(), false);
}

}  // namespace lathe
