// What attention kernels store as the LSE of a row, which they have in base 2.
#pragma once

#include "attn/lse_convention.h"

namespace lathe::cuda {

struct LseForm {
  float unit = 0.6931471805599453f;      // a factor of it
  float empty = -__builtin_huge_valf();  // in its place, for a row without keys
};

inline LseForm lse_form(LseConvention convention) {
  LseForm form;
  if (convention.base_2) form.unit = 1;
  if (convention.empty_plus_inf) form.empty = -form.empty;
  return form;
}

}  // namespace lathe::cuda
