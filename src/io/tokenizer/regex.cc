#include "io/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>

namespace lathe {
namespace {

// A character of ordinary text costs at most one step, backtracking over a run one step per
// character; 10 million steps take tens of milliseconds.
constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
constexpr std::size_t kMaxPatternBytes = 64 * 1024;

struct FreeContext {
  void operator()(pcre2_compile_context* c) const { pcre2_compile_context_free(c); }
};

}  // namespace

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }
void Regex::Match::Free::operator()(pcre2_real_match_data_8* data) const {
  pcre2_match_data_free(data);
}
void Regex::Match::Free::operator()(pcre2_real_match_context_8* limits) const {
  pcre2_match_context_free(limits);
}
Regex::Match::Match()
    : data_(pcre2_match_data_create(1, nullptr)), limits_(pcre2_match_context_create(nullptr)) {
  LATHE_CHECK(data_ && limits_, "no memory for a match");
  pcre2_set_match_limit(limits_.get(), kMatchLimit);
  pcre2_set_heap_limit(limits_.get(), kHeapLimitKib);
}

Result<Regex> Regex::compile(std::string_view pattern, const std::string& field) {
  const auto translated = translate_regex(pattern, field);
  if (!translated) return translated.error();
  return compile_with(*translated,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, field);
}

Result<Regex> Regex::literal(std::string_view text, const std::string& field) {
  return compile_with(text, PCRE2_UTF | PCRE2_LITERAL, field);
}

Result<Regex> Regex::compile_with(std::string_view pattern, unsigned options,
                                  const std::string& field) {
  const std::unique_ptr<pcre2_compile_context, FreeContext> context(
      pcre2_compile_context_create(nullptr));
  LATHE_CHECK(context != nullptr, "no memory for a pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // as in Ruby syntax
  pcre2_set_max_pattern_length(context.get(), kMaxPatternBytes);
  int code = 0;
  PCRE2_SIZE at = 0;
  Regex out;
  out.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                options, &code, &at, context.get()));
  if (!out.code_) {
    std::array<char, 256> text{};
    pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
    return Error{ErrorCode::malformed, field, "a regular expression",
                 fmt::format("one with an error at byte {}: {}", at, text.data()), ""};
  }
  // Without the JIT (no executable memory) pcre2_match interprets: slower, but equal matches.
  pcre2_jit_compile(out.code_.get(), PCRE2_JIT_COMPLETE);
  return out;
}

Error search_stopped(const std::string& field) {
  return {ErrorCode::exhausted, field,
          fmt::format("a pattern that reads this text within {} steps", kMatchLimit), "more steps",
          ""};
}

std::optional<std::pair<std::size_t, std::size_t>> Regex::find(std::string_view text,
                                                               std::size_t from,
                                                               Match& match) const {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int rc = pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                       match.data_.get(), match.limits_.get());
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    // The JIT has 32 KiB of stack; the interpreter backtracks on the heap.
    rc = pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                     match.data_.get(), match.limits_.get());
  }
  if (rc < 0) {
    match.stopped_ |= rc != PCRE2_ERROR_NOMATCH;
    return std::nullopt;
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.data_.get());
  // \K is rejected, so a match cannot end before it begins or begin before `from`.
  return std::pair{ends[0], ends[1]};
}

}  // namespace lathe
