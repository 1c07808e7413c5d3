// Refuses benches that need more memory than there is, before they allocate any.
#pragma once

#include <string>

#include "attn/machine.h"
#include "base/result.h"

namespace lathe {

/// The error if `needed` bytes are more than the device has, or than a GPU has free. flag: what
/// asks for them; what: they, in words, before ": 96.0 GiB".
Result<void> check_bench_memory(Device device, double needed, std::string flag,
                                const std::string& what, std::string way_out);

}  // namespace lathe
