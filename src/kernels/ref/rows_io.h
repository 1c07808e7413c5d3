// Rows of a RowsView as doubles and back, and LSEs.
#pragma once

#include <cstdint>
#include <span>

#include "attn/attend.h"

namespace lathe {

/// Row r of a view of f64, f32, bf16 or e4m3 times `scale` into out [view.cols].
void read_row(const RowsView& view, std::int64_t r, double scale, std::span<double> out);

/// values [view.cols] into row r of a view of f64, f32 or bf16, rounded to nearest (bf16 by way of
/// f32, which is how kernels write it).
void write_row(const MutableRowsView& view, std::int64_t r, std::span<const double> values);

/// natural [heads], logs of a row, into args.lse by its convention, if there is one.
void write_lse(const AttendArgs& args, std::int64_t row, std::span<const double> natural);

}  // namespace lathe
