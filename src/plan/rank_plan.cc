#include "plan/rank_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace lathe {
namespace {

// Measured on two H200 beyond the norm that the exchange replaces; 4 and 8 ranks are estimates.
double peer_base_seconds(std::int32_t ranks) {
  return ranks <= 2 ? 1.8e-6 : ranks <= 4 ? 2.4e-6 : 3.0e-6;
}
// NCCL's smallest all-reduce in a graph, on two H200.
constexpr double kNcclBaseSeconds = 7.6e-6;
// PCIe 5 with 16 lanes, one direction.
constexpr double kPcieBytesPerSecond = 50e9;

// Above these rows it is faster that a rank sums its share of them, or pulls them.
std::int64_t push_rows_of(std::int32_t ranks, bool divided) {
  if (ranks > 4) return 16;
  if (!divided) return 256;
  return ranks <= 2 ? 128 : 32;
}

void keep_larger(Range& most, const Range& range) { most = {0, std::max(most.count, range.count)}; }

Reason refused(std::string subject, std::string field, std::string wanted, std::string offered,
               std::string hint) {
  return {Rule::ranks,       std::move(subject), std::move(field),
          std::move(wanted), std::move(offered), std::move(hint)};
}

}  // namespace

Share largest_share(const SplitSizes& sizes, const Parallel& parallel) {
  Share out;
  out.ranks = parallel.tp;
  for (std::int32_t r = 0; r < parallel.tp; ++r) {
    const Share s = share_of(sizes, parallel, r);
    for (Range Share::*part :
         {&Share::heads, &Share::kv_heads, &Share::o_groups, &Share::ffn, &Share::shared,
          &Share::expert_width, &Share::experts, &Share::vocab}) {
      keep_larger(out.*part, s.*part);
    }
  }
  return out;
}

Result<ExchangePlan, Reason> plan_exchange(const Machine& machine, const PlanRequest& request,
                                           std::int64_t width, std::int64_t layers, bool divided) {
  ExchangePlan out;
  out.width = width;
  const std::int32_t n = request.tp;
  if (n == 1) return out;
  out.in_layers = 2 * layers;
  const bool gpu = is_gpu(machine.device);
  if (!gpu && request.exchange != "auto") {
    return refused("exchange", "--exchange", "GPUs",
                   fmt::format("--device {}", name(machine.device)), "--exchange auto");
  }
  if (machine.ranks < n) {
    const std::string what = fmt::format("{}s", gpu ? machine.model : "rank");
    return refused("GPUs", "--tp", fmt::format("{} {}", n, what),
                   fmt::format("{} found", machine.ranks), "");
  }
  if (gpu && request.exchange_dtype == "f32") {
    return refused("exchange", "--exchange-dtype", "bf16, which GPUs write", "f32",
                   "--exchange-dtype auto");
  }
  out.dtype = gpu ? DType::bf16 : DType::f32;
  out.bytes_per_second = machine.link_bytes_per_second;
  if (!gpu) {
    out.kind = ExchangeKind::host;
    return out;
  }
  if (!machine.peers && request.exchange == "peer") {
    return refused("exchange", "--exchange", "GPUs with access to each other's memory",
                   "peer, and they have none", machine.nccl ? "--exchange nccl" : "");
  }
  if ((!machine.peers || request.exchange == "nccl") && !machine.nccl) {
    return refused("exchange", "--exchange", "libnccl.so.2 of version 2.27 or later",
                   "none that can be opened",
                   machine.peers ? "--exchange peer" : "install nvidia-nccl-cu13");
  }
  if (!machine.peers || request.exchange == "nccl") {
    out.kind = ExchangeKind::nccl;
    out.base_seconds = kNcclBaseSeconds;
    if (!machine.peers) out.bytes_per_second = kPcieBytesPerSecond;
    return out;
  }
  out.kind = ExchangeKind::peer;
  out.base_seconds = peer_base_seconds(n);
  out.push_rows = push_rows_of(n, divided);
  out.divided = divided;
  return out;
}

// Pushed or pulled: every rank's rows go to all others. Otherwise least bytes are sent if a rank
// sums an n-th of the rows, for which it gets n - 1 partials, and then sends the sums to all
// others; each half waits for the ranks. With two ranks the bytes are the same.
double exchange_seconds(const ExchangePlan& e, std::int32_t ranks, std::int64_t rows) {
  if (e.base_seconds == 0 || ranks == 1) return 0;
  const double bytes = static_cast<double>(rows * e.row_bytes());
  const double others = ranks - 1;
  const bool once =
      e.kind == ExchangeKind::peer && (ranks == 2 || rows <= e.push_rows || !e.divided);
  if (once) return e.base_seconds + others * bytes / e.bytes_per_second;
  const double waits = e.kind == ExchangeKind::peer ? 2 : 1;
  return waits * e.base_seconds + 2 * others / ranks * bytes / e.bytes_per_second;
}

std::int64_t exchange_bytes(const ExchangePlan& e, std::int32_t ranks, std::int64_t rows) {
  if (e.kind == ExchangeKind::none) return 0;
  const std::int64_t row = (e.row_bytes() + 63) / 64 * 64;
  if (e.kind != ExchangeKind::peer) return rows * row;
  // Some sums are not divided in any model. Of divided rows a plane holds the peers' partials of
  // one share, and the results of all.
  constexpr std::int64_t kPushedOwned = 256;
  const std::int64_t owned = std::min(rows, kPushedOwned);
  const std::int64_t plane = std::max((ranks - 1) * std::min(rows, push_rows_of(ranks, false)),
                                      owned + (owned + ranks - 1) / ranks * (ranks - 1));
  return 3 * plane * row + rows * row;
}

}  // namespace lathe
