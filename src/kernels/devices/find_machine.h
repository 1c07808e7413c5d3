// Finds the machine that `auto`, `cuda` or a device's name means.
#pragma once

#include <string_view>

#include "attn/machine.h"
#include "base/result.h"

namespace lathe {

/// "auto": a supported GPU of this computer, else the CPU. "cuda": this computer's GPU, else the
/// described sm90, as a plan needs no device. Or a device name. Errors: an unknown name; lists the
/// known ones.
Result<Machine> find_machine(std::string_view device);

}  // namespace lathe
