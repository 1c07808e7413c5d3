// The residual state before a draft layer, from the next token and a hidden state.
#pragma once

#include "base/rows_view.h"
#include "kernels/context.h"
#include "model/layers/decoder_view.h"
#include "model/model.h"

namespace lathe {

/// x = eh_proj of the next token's embedding and the hidden state, both normed; with several
/// streams e_proj of the embedding, added to all streams, and h_proj of each. x: [rows,
/// state_width()] f32.
void join_draft(const OpsContext& ops, const DecoderView& m, const ForwardArgs& args,
                const MutableRowsView& x);

}  // namespace lathe
