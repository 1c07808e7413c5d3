// The residual state before the first layer.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "kernels/context.h"
#include "model/layers/decoder_view.h"

namespace lathe {

/// Embeds every row's token; all streams begin with its embedding. x: [rows, state_width()] f32.
void embed_tokens(const OpsContext& ops, const DecoderView& m, std::span<const std::int32_t> tokens,
                  const MutableRowsView& x);
/// Embeds every row's token in the first stream, or the only one. x: [rows, hidden] f32.
void embed_rows(const OpsContext& ops, const DecoderView& m, std::span<const std::int32_t> tokens,
                const MutableRowsView& x);
/// Copies the first stream to all others.
void copy_stream(const OpsContext& ops, const DecoderView& m, const MutableRowsView& x);

}  // namespace lathe
