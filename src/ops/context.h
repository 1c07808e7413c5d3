// What an operator runs with: the device that it dispatches to, its threads, and the memory of
// intermediate tensors.
#pragma once

#include "attn/machine.h"
#include "base/arena.h"
#include "base/execution.h"

namespace lathe {

struct OpsContext {
  Device device = Device::cpu;  // ref or cpu
  Execution execution;
  Arena* arena = nullptr;  // never null: operators take their temporaries here and give them back
};

}  // namespace lathe
