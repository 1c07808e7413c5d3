// From the last layer's output to logits.
#pragma once

#include "base/rows_view.h"
#include "kernels/context.h"
#include "model/layers/decoder_view.h"
#include "model/layers/non_finite_search.h"
#include "model/model.h"

namespace lathe {

/// Whether the last layer's exchange also applies the final norm, as it does for several ranks. A
/// rank may then have only some rows of x.
bool ends_in_norm(const OpsContext& ops, const DecoderView& m);

/// Mixes the streams into the final norm's input, [rows, hidden] f32 in ops.tensors; without
/// weights it is their mean. x: [rows, streams * hidden] f32.
MutableRowsView head_streams(const OpsContext& ops, const DecoderView& m, const HyperWeights& w,
                             const RowsView& x);

/// Logits of args.logit_rows. x: [rows, state_width()] f32, after the last layer.
void logits(const OpsContext& ops, const DecoderView& m, const MutableRowsView& x,
            const ForwardArgs& args, NonFiniteSearch& search);
/// Logits of args.logit_rows from h: all rows, normed for the head.
void logits_of_normed(const OpsContext& ops, const DecoderView& m, const MutableRowsView& h,
                      const ForwardArgs& args, NonFiniteSearch& search);
/// Logits of the head's input rows: all of them, or with several ranks this rank's whole rows.
void head(const OpsContext& ops, const DecoderView& m, const RowsView& h, const ForwardArgs& args,
          NonFiniteSearch* search = nullptr);

}  // namespace lathe
