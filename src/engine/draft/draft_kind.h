// DraftKind: the drafters that a user may name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/enum.h"
#include "base/result.h"

namespace lathe {

/// none   no drafts
/// ngram  what followed the last tokens earlier in the same request (NgramDrafter)
/// mtp    the checkpoint's draft layer (MtpDrafter)
/// model  a separate, smaller model (ModelDrafter)
#define LATHE_DRAFT_KINDS(X) X(none) X(ngram) X(mtp) X(model)
LATHE_ENUM(DraftKind, LATHE_DRAFT_KINDS)

struct DraftChoice {
  DraftKind kind = DraftKind::none;
  std::string directory = {};  // the draft model's

  /// What names the drafter to a user: the directory of a draft model, else the kind.
  std::string text() const {
    return kind == DraftKind::model ? directory : std::string(name(kind));
  }
};

/// Reads --draft, in small letters or capitals: a kind, nextn for mtp, or a draft model's
/// directory. `model_path`: of --speculative-draft-model-path, such a directory, with none or
/// SGLang's standalone as `text`; empty: not given. Errors: another name; EAGLE's layers, which do
/// not run, with what does.
Result<DraftChoice> parse_draft(std::string_view text, const std::string& model_path = "");

/// Most drafts of a request in a step: `asked` (--draft-tokens) or, if that is 0, the kind's
/// default; 0 for kind none. Errors: a number out of range, or given without a drafter.
Result<std::int32_t> draft_tokens_of(DraftKind kind, std::int32_t asked);

}  // namespace lathe
