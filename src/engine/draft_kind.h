// DraftKind: the drafters that a user may name.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/enum.h"
#include "base/result.h"
#include "engine/drafter.h"
#include "kernels/context.h"
#include "model/cache.h"
#include "model/model.h"

namespace lathe {

/// none   a token at a time
/// ngram  what followed the last tokens before, in the request itself (NgramDrafter)
/// mtp    the checkpoint's draft layer (MtpDrafter)
#define LATHE_DRAFT_KINDS(X) X(none) X(ngram) X(mtp)
LATHE_ENUM(DraftKind, LATHE_DRAFT_KINDS)

/// Reads --draft, in small letters or capitals; nextn is mtp. Errors: another name; a draft model
/// or EAGLE's layers, which do not run, with what does.
Result<DraftKind> parse_draft(std::string_view text);

/// Drafts of a request in a step: `asked` of --draft-tokens, or where it is 0 what suits the kind;
/// 0 of none. Errors: a number that is out of range, or without a drafter.
Result<std::int32_t> draft_tokens_of(DraftKind kind, std::int32_t asked);

/// Null: none. Model, cache and what `ops` points to must outlive it. Errors: MtpDrafter's.
Result<std::unique_ptr<Drafter>> make_drafter(DraftKind kind, const Model& model, KvCache& cache,
                                              const OpsContext& ops);

}  // namespace lathe
