// Partial attention results of one query row and head: merging two of them, and joining a sink.
#pragma once

#include <span>

namespace lathe {

/// Merges two partials over disjoint keys into out [n], which may be either input, and returns the
/// merged LSE. Natural log:
///   m = max(la, lb);  wa = e^(la-m);  wb = e^(lb-m);  out = (a wa + b wb) / (wa + wb)
///   lse = m + ln(wa + wb)
/// A partial with LSE -inf has no key and its out isn't read; if both are empty, out is 0 and the
/// LSE -inf. +inf is a score that overflowed, not "no key": it becomes NaN as data does.
double merge_states(std::span<const double> out_a, double lse_a, std::span<const double> out_b,
                    double lse_b, std::span<double> out);

/// Joins a sink, a raw logit that isn't multiplied by the softmax scale, to the denominator:
///   out *= e^lse / (e^lse + e^sink)
/// The LSE stays as it is. sink +inf gives 0 and -inf changes nothing; without a key out stays 0.
void apply_sink(std::span<double> out, double lse, double sink);

}  // namespace lathe
