// The unit in which attention kernels store LSE. They compute it in base 2.
#pragma once

#include "attn/lse_convention.h"

namespace lathe::cuda {

struct LseForm {
  float unit = 0.6931471805599453f;      // factor from base 2
  float empty = -__builtin_huge_valf();  // stored for a row without keys
};

inline LseForm lse_form(LseConvention convention) {
  LseForm form;
  if (convention.base_2) form.unit = 1;
  if (convention.empty_plus_inf) form.empty = -form.empty;
  return form;
}

}  // namespace lathe::cuda
