// Ranks that are threads of one process, with tensors in host memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/communicator.h"

namespace lathe {

/// A communicator for each rank of a group, [ranks]. Call each from its rank's thread, except
/// abort(). Each may be destroyed at any time when no rank is in a call. Exchanges run at once, so
/// each waits for all ranks. If ranks call exchanges of different kinds or shapes, the group is
/// aborted with an error that names both. Partials are f32. spin: how long a rank looks for the
/// others before it sleeps; to wake it costs about 50 us. Precondition: ranks >= 2.
std::vector<std::unique_ptr<Communicator>> make_host_communicators(
    std::int32_t ranks, std::chrono::microseconds spin = std::chrono::microseconds(5));

}  // namespace lathe
