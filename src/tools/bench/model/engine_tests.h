// The rows of `lathe bench engine`: what is measured.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lathe {

/// A prefill, or decode steps, of `batch` requests after `depth` tokens in the cache.
struct EngineTest {
  bool decodes = false;
  std::int64_t tokens = 0;  // of each request, at least 1
  std::int64_t depth = 0;
  std::int64_t batch = 1;

  std::string name() const;  // pp512, tg64
  /// Positions that a request's tokens have in the cache. `drafts`: most guesses in a step.
  std::int64_t positions(std::int64_t drafts) const {
    return depth + (decodes ? 1 + tokens + drafts : tokens);
  }
  /// Tokens of a request's prompt and answer. A prefill answers with one; decoding begins with the
  /// prompt's last token, whose step is a prefill, too.
  std::int64_t context() const { return depth + tokens + (decodes ? 2 : 1); }

  bool operator==(const EngineTest&) const = default;
};

/// Reads "pp8192", "pp1024x16" or "tg128@960x64": tokens, @ depth, x batch. Errors
/// (invalid_argument): another form, no tokens, or a number above 2^24.
Result<EngineTest> parse_engine_test(std::string_view text);

/// All combinations, in the order in which they are measured; tokens of 0 are left out.
std::vector<EngineTest> engine_tests(const std::vector<std::int64_t>& prompts,
                                     const std::vector<std::int64_t>& answers,
                                     const std::vector<std::int64_t>& depths,
                                     const std::vector<std::int64_t>& batches);

}  // namespace lathe
