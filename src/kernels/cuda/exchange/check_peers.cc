#include "kernels/cuda/exchange/check_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/exchange/cuda_communicator.h"

namespace lathe::cuda {
namespace {

Error wrong_copy(std::span<const int> gpus, int rank, int from, std::string what) {
  return {ErrorCode::device,
          fmt::format("copies from GPU {} to GPU {}", gpus[static_cast<std::size_t>(from)],
                      gpus[static_cast<std::size_t>(rank)]),
          "data as sent", std::move(what),
          "do the IOMMU's and the PCIe switches' settings (ACS) allow peer access? "
          "--exchange nccl needs none"};
}

// Allocated before the first kernel that waits: an allocation may wait for the peers' GPUs.
struct TestArrays {
  DeviceArray<bf16> partial;
  DeviceArray<float> x;
};

Result<void> test_sum(const ExchangePeers& peers, SumPath path, std::int64_t rows,
                      std::int64_t cols, const ExchangeLaunch& launch, std::span<const int> gpus,
                      const TestArrays& arrays, const Stream& stream) {
  const std::int64_t count = rows * cols;
  std::vector<bf16> parts(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    parts[static_cast<std::size_t>(i)] = to_bf16(test_part(i, peers.rank));
  }
  if (auto ok = copy_to_device(std::span<const bf16>(parts), arrays.partial.data(), stream); !ok) {
    return ok;
  }
  const SumParams p{
      .partial = {reinterpret_cast<const std::byte*>(arrays.partial.data()), cols, DType::bf16},
      .x = {reinterpret_cast<std::byte*>(arrays.x.data()), cols, DType::f32},
      .rows = rows,
      .cols = cols,
      .add = false};
  if (auto ok = call_result(launch_sum(peers, path, p, launch, stream), "sum"); !ok) return ok;
  std::vector<float> sums(static_cast<std::size_t>(count));
  if (auto ok = copy_to_host<float>(arrays.x.data(), std::span(sums), stream); !ok) return ok;
  if (auto ok = stream.wait(); !ok) return ok;
  if (peers.control->gave_up != GaveUp::no) {
    return wrong_copy(gpus, peers.rank, peers.rank == 0 ? 1 : 0, "nothing arrived");
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float sum = sums[static_cast<std::size_t>(i)];
    const int from = wrong_part(sum, i, peers.size);
    if (from >= 0) {
      return wrong_copy(gpus, peers.rank, from,
                        fmt::format("{} in a sum of {} rows of {}", sum, rows, cols));
    }
  }
  return {};
}

}  // namespace

float test_part(std::int64_t i, int rank) { return static_cast<float>((i % 3 + 1) << (2 * rank)); }

int wrong_part(float sum, std::int64_t i, int ranks) {
  const bool whole = sum >= 0 && sum < static_cast<float>(1 << (2 * ranks)) &&
                     sum == static_cast<float>(static_cast<int>(sum));
  const int bits = whole ? static_cast<int>(sum) : 0;
  for (int r = 0; r < ranks; ++r) {
    if ((bits >> (2 * r) & 3) != i % 3 + 1) return r;
  }
  return -1;
}

Result<void> test_sums(const ExchangePeers& peers, const ExchangeLaunch& launch,
                       const ExchangeLimits& limits, std::span<const int> gpus,
                       const Stream& stream, const Agree& agree) {
  const std::int64_t most = peers.plane_words / (exchange_words(limits.cols) * (peers.size - 1));
  const std::int64_t pushed = std::min(most, pushed_rows(peers.size, false));
  auto partial = DeviceArray<bf16>::make(pushed * limits.cols);
  auto x = DeviceArray<float>::make(pushed * limits.cols);
  Result<void> mine;
  if (!x) mine = x.error();
  if (!partial) mine = partial.error();
  if (auto ok = agree(mine); !ok) return ok;
  const TestArrays arrays{std::move(*partial), std::move(*x)};
  // A rank that has failed goes on, as the others would wait for it.
  const auto sum = [&](SumPath path, std::int64_t rows) {
    const Result<void> ok = test_sum(peers, path, rows, limits.cols, launch, gpus, arrays, stream);
    if (mine) mine = ok;
  };
  for (const std::int64_t rows : {std::int64_t{1}, pushed}) {
    for (int i = 0; i <= kPlanes; ++i) sum(SumPath::push, rows);  // all planes, the first again
    sum(SumPath::pull, rows);
  }
  return agree(mine);  // and only then free the arrays
}

}  // namespace lathe::cuda
