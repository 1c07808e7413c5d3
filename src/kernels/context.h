// What an operator runs with: the backend of its device, threads, and memory for temporaries.
#pragma once

#include "base/arena.h"
#include "base/execution.h"
#include "kernels/linear.h"

namespace lathe {

class Backend;
class Communicator;

struct OpsContext {
  Backend* backend = nullptr;
  Execution execution;
  // The backend must support it (Backend::multiplies_in()); ref ignores it.
  MatmulPrecision precision = MatmulPrecision::f32;
  Communicator* communicator = nullptr;  // of this rank; null: there is one rank
  // Operators allocate their temporaries here and free them before they return. Never null.
  Arena* tensors = nullptr;  // backend memory: only the backend's kernels may access it
  Arena* control = nullptr;  // host memory: lists of GEMMs, expert ids, data that the host reads
};

}  // namespace lathe
