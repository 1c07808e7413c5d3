// Finds the machine that `auto`, `cuda` or a device's name means.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/machine.h"
#include "base/result.h"

namespace lathe {

/// The GPUs of a model's ranks.
struct GpuChoice {
  std::int32_t ranks = 1;
  // --gpus: "0,1", the GPUs' numbers; of a described machine, how many it has. Empty: the first
  // ones; a described machine has as many as there are ranks.
  std::string gpus;
};

/// "auto": a supported GPU of this computer, else the CPU. "cuda": this computer's GPUs, else the
/// described sm90, as a plan needs no device. Or a device's name, or h100 or h200. Errors: an
/// unknown name (lists the known ones); --gpus with numbers that this computer does not have, more
/// or fewer than ranks, or GPUs that differ.
Result<Machine> find_machine(std::string_view device, const GpuChoice& choice = {});

/// The numbers of a choice's GPUs, of `count` that this computer has: choice.ranks of them with
/// --gpus, else the first ones, which may be fewer. Errors: as find_machine()'s. Precondition:
/// count > 0.
Result<std::vector<std::int32_t>> choose_gpus(const GpuChoice& choice, std::int32_t count);

/// A GPU of this computer.
struct FoundGpu {
  std::int32_t number = 0;
  Machine machine;
  std::int64_t free_bytes = 0;
};

/// These GPUs as the ranks of one machine. nccl: it can be opened, if it is needed. Errors: GPUs of
/// several kinds. Precondition: at least one.
Result<Machine> join_gpus(std::span<const FoundGpu> gpus, bool peers, bool nccl);

}  // namespace lathe
