// How a caller wants the LSE of rows.
#pragma once

namespace lathe {

struct LseConvention {
  bool base_2 = false;          // FlashInfer's; else natural logs
  bool empty_plus_inf = false;  // FlashMLA's: +inf for a row without keys; else -inf
};

/// A natural log, or the -inf of a row without keys, as the convention has it.
double by_convention(LseConvention convention, double natural);

}  // namespace lathe
