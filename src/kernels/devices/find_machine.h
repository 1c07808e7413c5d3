// The machine that a device's name stands for: this computer's GPU where there is one.
#pragma once

#include <string_view>

#include "attn/machine.h"
#include "base/result.h"

namespace lathe {

/// "auto" (a supported GPU if there is one, else the CPU), "cuda" (this computer's GPU, else a
/// described sm90: a plan needs no device), or a device name. Errors: an unknown name, listing the
/// known ones.
Result<Machine> find_machine(std::string_view device);

}  // namespace lathe
