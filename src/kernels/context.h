// What an operator runs with: the backend of its device, threads or a stream, and the memory of
// intermediate tensors.
#pragma once

#include "base/arena.h"
#include "base/execution.h"
#include "kernels/linear.h"

namespace lathe {

class Backend;

struct OpsContext {
  Backend* backend = nullptr;
  Execution execution;
  // bf16: only where the backend multiplies in it; ref ignores it.
  MatmulPrecision precision = MatmulPrecision::f32;
  // Operators take their temporaries here and give them back. Never null.
  Arena* tensors = nullptr;  // in the backend's memory: only its kernels may look there
  Arena* control = nullptr;  // of the host: lists of products, ids, what the host reads
};

}  // namespace lathe
