#include "tools/bench/model/engine_tests.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace lathe {
namespace {

constexpr std::int64_t kMost = 1 << 24;

// A number from 1 to kMost at the beginning of `text`, which it leaves out then.
std::optional<std::int64_t> next_number(std::string_view& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 1 || value > kMost) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<EngineTest> parse(std::string_view text) {
  EngineTest out;
  out.decodes = text.starts_with("tg");
  if (!out.decodes && !text.starts_with("pp")) return std::nullopt;
  text.remove_prefix(2);
  const auto tokens = next_number(text);
  if (!tokens) return std::nullopt;
  out.tokens = *tokens;
  for (const auto& [mark, to] : {std::pair{'@', &out.depth}, std::pair{'x', &out.batch}}) {
    if (!text.starts_with(mark)) continue;
    text.remove_prefix(1);
    const auto number = next_number(text);
    if (!number) return std::nullopt;
    *to = *number;
  }
  if (!text.empty()) return std::nullopt;
  return out;
}

}  // namespace

std::string EngineTest::name() const { return fmt::format("{}{}", decodes ? "tg" : "pp", tokens); }

Result<EngineTest> parse_engine_test(std::string_view text) {
  if (const auto test = parse(text)) return *test;
  return Error{ErrorCode::invalid_argument, "--tests",
               "pp or tg and tokens, perhaps @ depth and x batch", std::string(text),
               "pp8192, pp1024x16 or tg128@960x64"};
}

std::vector<EngineTest> engine_tests(const std::vector<std::int64_t>& prompts,
                                     const std::vector<std::int64_t>& answers,
                                     const std::vector<std::int64_t>& depths,
                                     const std::vector<std::int64_t>& batches) {
  std::vector<EngineTest> out;
  for (const std::int64_t batch : batches) {
    for (const std::int64_t depth : depths) {
      for (const std::int64_t n : prompts) {
        if (n > 0) out.push_back({false, n, depth, batch});
      }
      for (const std::int64_t n : answers) {
        if (n > 0) out.push_back({true, n, depth, batch});
      }
    }
  }
  return out;
}

}  // namespace lathe
