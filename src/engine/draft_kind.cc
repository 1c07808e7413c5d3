#include "engine/draft_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/mtp_drafter.h"
#include "engine/ngram_drafter.h"
#include "model/draft_layer.h"

namespace lathe {
namespace {

constexpr std::int32_t kNgramDraftTokens = 4;
constexpr std::int32_t kMtpDraftTokens = 1;

}  // namespace

Result<DraftKind> parse_draft(std::string_view text) {
  std::string small(text);
  std::ranges::transform(small, small.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  if (const auto kind = parse_enum<DraftKind>(small)) return *kind;
  if (small == "nextn") return DraftKind::mtp;
  std::string hint = "--draft ngram needs no weights";
  if (small.starts_with("eagle")) {
    hint = "layers of EAGLE are not run, --draft mtp is for those of a checkpoint; " + hint;
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
  const bool mtp = kind == DraftKind::mtp;
  const std::int64_t most = mtp ? kDraftUses : kMaxDraftTokens;
  if (asked == 0) return mtp ? kMtpDraftTokens : kNgramDraftTokens;
  if (asked > 0 && asked <= most) return asked;
  return Error{ErrorCode::out_of_range, "--draft-tokens",
               fmt::format("1 to {}{}", most, mtp ? " with --draft mtp" : ""),
               fmt::format("{}", asked), ""};
}

Result<std::unique_ptr<Drafter>> make_drafter(DraftKind kind, const Model& model, KvCache& cache,
                                              const OpsContext& ops) {
  std::unique_ptr<Drafter> out;
  if (kind == DraftKind::ngram) out = std::make_unique<NgramDrafter>();
  if (kind == DraftKind::mtp) {
    auto made = MtpDrafter::create(model, cache, ops);
    if (!made) return made.error();
    out = std::make_unique<MtpDrafter>(std::move(*made));
  }
  return out;
}

}  // namespace lathe
