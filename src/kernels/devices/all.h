// All kernels, adapters and backends of this build.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "plan/registry.h"

namespace lathe {

Registry all_kernels();
/// The kernels that whole models may use on a device. For a GPU there are no adapters: its kernels
/// over compact rows are for callers of single attention calls, who gather the rows themselves.
Registry model_kernels(Device device);

/// sm90: GPU `gpu`, which becomes the calling thread's current one. communicator: of the rank, from
/// make_communicators(), or null if it is alone; it must outlive the backend. Errors: a device that
/// whole models don't run on, or that is missing or unfit.
Result<std::unique_ptr<Backend>> make_backend(Device device, int gpu = 0,
                                              Communicator* communicator = nullptr);

/// Communicators of `ranks` ranks with such backends. sm90: over the peer memory of GPUs `gpus`, or
/// by NCCL; without `gpus` 0 to ranks - 1. Other devices: ranks are threads. Errors: a build
/// without CUDA; GPUs without access to each other's memory; NCCL that is missing or too old.
Result<std::vector<std::unique_ptr<Communicator>>> make_communicators(
    Device device, std::int32_t ranks, std::span<const int> gpus = {}, bool nccl = false);

}  // namespace lathe
