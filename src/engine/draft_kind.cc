#include "engine/draft_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/ngram_drafter.h"

namespace lathe {
namespace {

constexpr std::int32_t kNgramDraftTokens = 4;

}  // namespace

Result<DraftKind> parse_draft(std::string_view text) {
  std::string small(text);
  std::ranges::transform(small, small.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  if (const auto kind = parse_enum<DraftKind>(small)) return *kind;
  std::string hint = "--draft ngram needs no weights";
  if (small == "mtp" || small == "nextn" || small.starts_with("eagle")) {
    hint = "a checkpoint's draft layers are not run; " + hint;
  } else if (small == "standalone" || small.find('/') != std::string::npos) {
    hint = "a separate draft model is not run; " + hint;
  }
  return Error{ErrorCode::invalid_argument, "--draft", "one of " + known_names<DraftKind>(),
               fmt::format("\"{}\"", text), std::move(hint)};
}

Result<std::int32_t> draft_tokens_of(DraftKind kind, std::int32_t asked) {
  if (kind == DraftKind::none) {
    if (asked == 0) return 0;
    return Error{ErrorCode::invalid_argument, "--draft-tokens", "a drafter with it", "--draft none",
                 "--draft ngram"};
  }
  if (asked >= 0 && asked <= kMaxDraftTokens) return asked > 0 ? asked : kNgramDraftTokens;
  return Error{ErrorCode::out_of_range, "--draft-tokens", fmt::format("1 to {}", kMaxDraftTokens),
               fmt::format("{}", asked), ""};
}

std::unique_ptr<Drafter> make_drafter(DraftKind kind) {
  return kind == DraftKind::ngram ? std::make_unique<NgramDrafter>() : nullptr;
}

}  // namespace lathe
