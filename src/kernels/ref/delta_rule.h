// Delta-rule layers row by row as defined, each row in double precision; states are f32 after every
// row. Arguments as in ops/delta_rule.h.
#pragma once

#include "kernels/delta_rule.h"

namespace lathe {

void ref_delta_rule(const DeltaRule& op);

}  // namespace lathe
