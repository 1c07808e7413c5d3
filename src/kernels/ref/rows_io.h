// Reads rows of any dtype as doubles, and writes doubles and LSEs back, rounded.
#pragma once

#include <cstdint>
#include <span>

#include "attn/attend.h"

namespace lathe {

/// out [view.cols] = row r of a view of f64, f32, bf16, f16 or e4m3, times `scale`.
void read_row(const RowsView& view, std::int64_t r, double scale, std::span<double> out);

/// Writes values [view.cols] to row r of a view of f64, f32, bf16 or f16, rounded to nearest. bf16
/// and f16 are rounded to f32 first, as kernels do.
void write_row(const MutableRowsView& view, std::int64_t r, std::span<const double> values);

/// Writes a row's LSEs, natural [heads] in natural logarithms, to args.lse in its convention, if
/// the caller wants them.
void write_lse(const AttendArgs& args, std::int64_t row, std::span<const double> natural);

}  // namespace lathe
