#include "engine/draft/draft_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/draft/drafter.h"
#include "model/layers/draft_layer.h"

namespace lathe {
namespace {

constexpr std::int32_t kDraftTokens = 4;
constexpr std::int32_t kMtpDraftTokens = 1;

}  // namespace

Result<DraftChoice> parse_draft(std::string_view text, const std::string& model_path) {
  std::string small(text);
  std::ranges::transform(small, small.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  const bool standalone = small == "standalone";
  if (!model_path.empty()) {
    if (standalone || small == "none") return DraftChoice{DraftKind::model, model_path};
    return Error{ErrorCode::invalid_argument, "--speculative-draft-model-path",
                 "--speculative-algorithm STANDALONE with it", fmt::format("\"{}\"", text),
                 "or --draft DIR alone"};
  }
  if (standalone) {
    return Error{ErrorCode::invalid_argument, "--speculative-draft-model-path",
                 "a draft model's directory with --speculative-algorithm STANDALONE", "nothing",
                 "or --draft DIR alone"};
  }
  const auto kind = parse_enum<DraftKind>(small);
  if (kind && *kind != DraftKind::model) return DraftChoice{*kind};
  if (small == "nextn") return DraftChoice{DraftKind::mtp};
  std::error_code ignored;
  if (text.find('/') != std::string_view::npos || std::filesystem::is_directory(text, ignored)) {
    return DraftChoice{DraftKind::model, std::string(text)};
  }
  std::string hint = "--draft ngram needs no weights";
  if (small.starts_with("eagle")) {
    hint = "layers of EAGLE are not run, --draft mtp is for those of a checkpoint; " + hint;
  }
  return Error{ErrorCode::invalid_argument, "--draft",
               "none, ngram, mtp or a draft model's directory", fmt::format("\"{}\"", text),
               std::move(hint)};
}

Result<std::int32_t> draft_tokens_of(DraftKind kind, std::int32_t asked) {
  if (kind == DraftKind::none) {
    if (asked == 0) return 0;
    return Error{ErrorCode::invalid_argument, "--draft-tokens", "a drafter with it", "--draft none",
                 "--draft ngram"};
  }
  const bool mtp = kind == DraftKind::mtp;
  const std::int64_t most = mtp ? kDraftUses : kMaxDraftTokens;
  if (asked == 0) return mtp ? kMtpDraftTokens : kDraftTokens;
  if (asked > 0 && asked <= most) return asked;
  return Error{ErrorCode::out_of_range, "--draft-tokens",
               fmt::format("1 to {}{}", most, mtp ? " with --draft mtp" : ""),
               fmt::format("{}", asked), ""};
}

}  // namespace lathe
