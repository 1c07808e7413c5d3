// Partial attention results of one query row and head: merges two of them by their LSE, and applies
// a sink. In double.
#pragma once

#include <span>

namespace lathe {

/// Merges two partials over disjoint keys into out [n], which may be either input, and returns the
/// merged LSE. With natural logarithms la and lb:
///   m = max(la, lb);  wa = e^(la-m);  wb = e^(lb-m);  out = (a wa + b wb) / (wa + wb)
///   lse = m + ln(wa + wb)
/// A partial with LSE -inf has no key, and its out is not read. If neither has a key, out is 0 and
/// the LSE -inf. An LSE of +inf means a score that overflowed; the result is then NaN.
double merge_states(std::span<const double> out_a, double lse_a, std::span<const double> out_b,
                    double lse_b, std::span<double> out);

/// Adds a sink, a raw logit that is not multiplied by the softmax scale, to the denominator:
///   out *= e^lse / (e^lse + e^sink)
/// The LSE does not include the sink. A sink of +inf gives 0, and -inf changes nothing. Without a
/// key, out stays 0.
void apply_sink(std::span<double> out, double lse, double sink);

}  // namespace lathe
