// The arguments of a forward pass: their checks, and the lists of selected keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "model/layers/decoder_view.h"
#include "model/layers/layer_context.h"
#include "model/model.h"

namespace lathe {

/// Checks that args fit the model and its cache, for layer groups `groups`.
void check_args(const OpsContext& ops, const DecoderView& m, const ForwardArgs& args,
                std::span<const std::size_t> groups);

/// Allocates the selections of a group's segments. room: [rows, top_k] for all of them; null: each
/// has its own.
std::span<Selection> make_selections(const OpsContext& ops, const AttentionProblem& problem,
                                     std::span<const Segment> segments,
                                     std::int32_t* room = nullptr);

/// Lists of slots as rows of words, which are copied as they are.
MutableRowsView slot_rows(std::int32_t* slots, std::int64_t rows, std::int64_t width);

}  // namespace lathe
