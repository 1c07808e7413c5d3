// BatchItem: the rows of one request in a batch, as a Runner gets them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/phase.h"
#include "layout/pages/index_units.h"
#include "ops/sampling.h"

namespace lathe {

/// Rows of one request in a batch.
struct BatchItem {
  Phase phase = Phase::decode;  // decode: one row; verify: a known token and drafts after it
  // [layer groups] Lists of pages that cover the cached tokens and the rows; holes before a window.
  std::span<const std::vector<PageId>> pages;
  std::int32_t cached = 0;               // tokens before the rows
  std::span<const std::int32_t> tokens;  // [rows], at least one
  std::int64_t logits = 0;               // how many of the last rows give logits
  // [groups with a state] The slot with the state after the cached tokens, and the lists of slots
  // to write to, as in StepRequest.
  std::span<const PageId> states_before = {};
  std::span<const std::vector<PageId>> states = {};
  // [groups with compressed entries] Lists of pages for the entries that all these tokens complete.
  std::span<const std::vector<PageId>> entries = {};
  // Tokens to score: the log-probability of scored[k] after row first_scored + k, and of the
  // scored_top likeliest tokens there. Not for rows counted in `logits`.
  std::int64_t first_scored = 0;
  std::span<const std::int32_t> scored = {};
  std::int32_t scored_top = 0;
  std::span<const std::int32_t> scored_ids = {};  // further tokens to score at each row
  // [logits] How to sample from each row's logits, which the runner fills in; empty: not at all.
  std::span<const SampleArgs> samples = {};
  // [rows] For RunnerPass::draft: the place in HiddenRows of the state that each row's token was
  // sampled from. The last draft pass may have written it.
  std::span<const std::int32_t> before = {};
  // [rows] For draft layers that reuse selected keys: the row of the earlier pass whose selection
  // each row reuses (Runner::choice()); -1: the request's first keys. Empty: rows select keys
  // themselves. All items of a pass have it, or none.
  std::span<const std::int32_t> choices = {};
  // How many of the cached tokens, all on one page, the step first copies from the same places of
  // other pages. copied_from: [layer groups], or empty.
  std::int64_t copied = 0;
  std::span<const PageId> copied_from = {};
};

}  // namespace lathe
