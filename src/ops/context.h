// What an operator runs with: the device that it dispatches to, its threads, and the memory of
// intermediate tensors.
#pragma once

#include "attn/machine.h"
#include "base/arena.h"
#include "base/execution.h"
#include "kernels/linear.h"

namespace lathe {

struct OpsContext {
  Device device = Device::cpu;  // ref or cpu
  Execution execution;
  // bf16: only where cpu_has_bf16_dot() (kernels/cpu/matmul_bf16.h); ref ignores it.
  MatmulPrecision precision = MatmulPrecision::f32;
  Arena* arena = nullptr;  // never null: operators take their temporaries here and give them back
};

}  // namespace lathe
