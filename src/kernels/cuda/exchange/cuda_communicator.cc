#include "kernels/cuda/exchange/cuda_communicator.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/rows.h"
#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/exchange/host_part.h"
#include "kernels/cuda/exchange/nccl.h"

namespace lathe::cuda {

MutableRowsView HostPart::partials(const OpsContext& ops, std::int64_t rows, std::int64_t cols,
                                   DType dtype) {
  return alloc_rows(*ops.tensors, rows, cols, dtype);
}

std::int64_t pushed_rows(int ranks, bool owned) {
  if (ranks > 4) return 16;
  if (!owned) return 256;
  return ranks == 2 ? 128 : 32;
}

// The kernel of eight ranks polls two words a thread at most.
std::int64_t pushed_owned_rows(int ranks, std::int64_t cols) {
  return ranks * cols <= 65536 ? 256 : 0;
}

Result<void> check_peer_access(std::span<const int> gpus) {
  for (const int from : gpus) {
    for (const int to : gpus) {
      if (from == to) continue;
      int can = 0;
      if (auto ok = call_result(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer");
          !ok) {
        return ok;
      }
      if (can == 0) {
        return Error{ErrorCode::unsupported, "--exchange peer",
                     "GPUs that can access each other's memory",
                     fmt::format("GPU {} cannot access GPU {}", from, to), "use --exchange nccl"};
      }
    }
  }
  return {};
}

Result<std::vector<std::unique_ptr<CudaCommunicator>>> make_cuda_communicators(
    std::vector<std::unique_ptr<Communicator>> hosts, std::span<const int> gpus,
    ExchangeKind kind) {
  LATHE_CHECK(hosts.size() == gpus.size(), "a host's communicator for every GPU");
  const std::size_t size = gpus.size();
  if (size != 2 && size != 4 && size != 8) {
    return Error{ErrorCode::unsupported, "--tp", "2, 4 or 8 GPUs", fmt::format("{}", size), ""};
  }
  if (kind == ExchangeKind::nccl) {
    const auto library = open_nccl();
    if (!library) return library.error();
    return make_nccl_communicators(std::move(hosts), gpus, **library);
  }
  if (auto ok = check_peer_access(gpus); !ok) return ok.error();
  return make_peer_communicators(std::move(hosts), gpus);
}

}  // namespace lathe::cuda
