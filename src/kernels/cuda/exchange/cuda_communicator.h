// Communicators of GPUs of one host, a thread and a CudaBackend for each: over peer memory by
// Lathe's own kernels, or over NCCL.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/communicator.h"

namespace lathe::cuda {

/// What an exchange needs of its rank's backend.
class ExchangeStream {
 public:
  virtual ~ExchangeStream() = default;
  /// The stream of the operators. Copies and schedules that earlier calls asked for are on it.
  virtual cudaStream_t next() = 0;
  /// Keeps an operator's error for the next function that returns a Result.
  virtual void keep(const Result<void>& result) = 0;
};

class CudaCommunicator : public Communicator {
 public:
  /// The rank's GPU.
  virtual int ordinal() const = 0;
  /// The backend calls it once, before the first exchange.
  virtual void attach(ExchangeStream& stream) = 0;
  /// Call when the stream has been waited for. Errors: an exchange was left early because a peer
  /// did not come in time, or because of abort(). The first such error aborts the group.
  virtual Result<void> check() = 0;
  /// How long an exchange waits for its peers, replayed ones too. Without this call 600 s, because
  /// a peer may be loading code, and after a few steps 20 s. From the rank's thread. NCCL waits
  /// without a limit.
  virtual void set_limit(double seconds) = 0;
};

enum class ExchangeKind {
  peer,  // all pairs must have peer access
  nccl,
};

/// The ranks of a group on GPUs `gpus`. hosts: do what they do on the host, [gpus]
/// (kernels/host_communicator.h). reserve() connects the ranks: it enables peer access, allocates
/// planes and flags on the rank's GPU, and runs sums with known results. Errors: pairs without peer
/// access; ExchangeKind::nccl without the library (open_nccl()).
Result<std::vector<std::unique_ptr<CudaCommunicator>>> make_cuda_communicators(
    std::vector<std::unique_ptr<Communicator>> hosts, std::span<const int> gpus,
    ExchangeKind kind = ExchangeKind::peer);

/// Whether all pairs of GPUs can access each other's memory. Errors: names the first pair.
Result<void> check_peer_access(std::span<const int> gpus);

/// Rows up to which a sum is pushed, by the number of ranks. owned: of an exchange where a rank may
/// own rows (kernels/communicator.h).
std::int64_t pushed_rows(int ranks, bool owned);
/// Above pushed_rows(), and up to these rows, ranks sum and norm rows of their own, and push both
/// partials and results; beyond, they read the partials. 0: rows of these columns are always read.
std::int64_t pushed_owned_rows(int ranks, std::int64_t cols);

}  // namespace lathe::cuda
