// Runs whole models on one GPU. Every operator launches its kernels on one stream; decode steps are
// captured as CUDA graphs and replayed. Here are the steps: their lists, recordings, samples and
// ends.
#include "kernels/cuda/backend.h"

#include <utility>

#include "base/check.h"
#include "kernels/cuda/cuda_backend.h"

namespace lathe::cuda {

cudaStream_t CudaBackend::next() {
  keep(flush());
  return stream_;
}

void CudaBackend::keep(const Result<void>& result) {
  if (failed_ && !result) failed_ = result;
}

bool CudaBackend::multiplies_in(MatmulPrecision precision) const {
  return precision != MatmulPrecision::f32 && precision != MatmulPrecision::int8;
}

Result<void> CudaBackend::reserve(std::span<const Budget> budgets) {
  std::int64_t scratch = 0;
  for (const Budget& b : budgets) {
    if (b.kind == BudgetKind::step) {
      if (auto ok = staging_.reserve(b.bytes); !ok) return ok;
    }
    const bool kernel = b.kind == BudgetKind::split_partials || b.kind == BudgetKind::expanded_keys;
    if (kernel) scratch += b.bytes;
    if (b.kind == BudgetKind::schedules) scratch += b.bytes / 2;
  }
  if (scratch > 0 && scratch_.take(scratch) == nullptr) return no_scratch(scratch);
  if (auto ok = held_.reserve(); !ok) return ok;
  if (auto ok = reserve_arrivals(); !ok) return ok;
  // Not in a step: an allocation may wait for GPUs whose kernels wait for this rank.
  return communicator_ == nullptr ? Result<void>() : sampler_.reserve_records();
}

Result<void> CudaBackend::reserve_arrivals() {
  if (arrivals_) return {};
  auto counts = DeviceArray<std::uint32_t>::make(device_.sms);
  if (!counts) return counts.error();
  arrivals_.emplace(std::move(*counts));
  return call_result(
      cudaMemsetAsync(arrivals_->data(), 0, 4 * static_cast<std::size_t>(device_.sms), stream_),
      "clearing counts of arrivals");
}

Result<void> CudaBackend::upload(const OpsContext&, std::span<const std::byte> from,
                                 std::byte* to) {
  if (auto ok = held_.launch(stream_); !ok) return ok;
  return copy_to_device(from, to, stream_);
}

Result<void> CudaBackend::download(const OpsContext&, const std::byte* from,
                                   std::span<std::byte> to) {
  if (auto ok = held_.launch(stream_); !ok) return ok;
  if (auto ok = copy_to_host(from, to, stream_); !ok) return ok;
  if (auto ok = stream_.wait(); !ok || communicator_ == nullptr) return ok;
  return communicator_->check();
}

Result<void> CudaBackend::prepare_step(const OpsContext& ops, const Plan& plan,
                                       const KeyPools& pools, const StepView& step,
                                       PreparedStep& out) {
  StepView& v = out.view;
  v = step;
  Result<void> ok;
  const auto copy = [&]<class T>(std::span<const T>& list) {
    if (!ok) return;
    auto at = staging_.add_list(list);
    if (!at) {
      ok = at.error();
    } else {
      list = *at;
    }
  };
  const auto copy_table = [&](PageTableView& table) {
    std::span<const PageId> pages(table.data,
                                  static_cast<std::size_t>(table.requests * table.width));
    copy(pages);
    table.data = pages.data();
  };
  copy(v.positions);
  copy(v.row_request);
  copy(v.row_lens);
  copy(v.out_slots);
  copy(v.q_indptr);
  copy(v.kv_lens);
  copy_table(v.page_table);
  copy(v.index_lens);
  copy(v.window_slots);
  copy(v.window_lens);
  copy(v.compressed_lens);
  copy(v.compressed_out_slots);
  copy_table(v.compressed_table);
  copy(v.state_before);
  copy_table(v.state_table);
  copy(v.prefixes.lists);
  if (!ok) return ok;
  start_.schedule(plan, pools, execution(ops), out);
  return {};
}

Result<std::span<const std::int32_t>> CudaBackend::prepare_list(
    const OpsContext&, std::span<const std::int32_t> list) {
  return staging_.add_list(list);
}

Result<void> CudaBackend::copy_tokens(const OpsContext&, std::span<const Slot> from,
                                      std::span<const Slot> to, const PoolView& pool) {
  if (auto ok = staging_.flush(stream_); !ok) return ok;
  return move_tokens(pool, from, to, nullptr, stream_);
}

Result<void> CudaBackend::prepare_draws(const OpsContext&, std::span<const SampleArgs> rows,
                                        std::span<std::optional<SampledToken>> out,
                                        std::int64_t places) {
  return sampler_.prepare(rows, out, places, staging_);
}

Result<void> CudaBackend::replay(const OpsContext&, std::uint64_t key,
                                 const std::function<Result<void>()>& work) {
  if (auto ok = staging_.flush(stream_); !ok) return ok;
  Recording& r = recordings_[key ^ start_.key() ^ sampler_.key()];
  if (!r.graph) {
    // The first run is not captured: it allocates scratch and copies tables to the device, which
    // a capture must not do.
    const auto run = [&]() -> Result<void> {
      if (auto ok = work(); !ok) return ok;
      return held_.launch(stream_);
    };
    if (!std::exchange(r.ran, true)) return run();
    auto graph = Graph::capture(stream_, run);
    if (!graph) return graph.error();
    r.graph.emplace(std::move(*graph));
  }
  start_.clear();
  sampler_.started();
  if (auto ok = idle_.begin_step(stream_); !ok) return ok;
  return r.graph->launch(stream_);
}

void CudaBackend::sample(const OpsContext& ops, std::span<const SampleArgs> rows,
                         std::span<std::optional<SampledToken>> out) {
  if (!sampler_.is_prepared()) keep(sampler_.prepare(rows, out, std::ssize(rows), staging_));
  keep(flush());
  keep(sampler_.start(*ops.tensors, stream_));
}

Result<void> CudaBackend::wait() {
  keep(held_.launch(stream_));
  const bool previous = std::exchange(overlapping_, false);
  Result<void> waited = previous ? step_end_.wait() : stream_.wait();
  if (waited) waited = idle_.collect(!previous);
  if (waited && communicator_ != nullptr) waited = communicator_->check();
  if (!previous) {
    staging_.reset();
    start_.clear();
  }
  const Result<void> ok = std::exchange(failed_, {});
  if (!ok || !waited) {
    sampler_.drop();
    return ok ? waited : ok;
  }
  if (previous) {
    sampler_.finish_previous();
  } else {
    sampler_.finish();
  }
  return {};
}

void CudaBackend::share_draws(const OpsContext& ops, std::int64_t rows) {
  keep(flush());
  auto records = sampler_.place_draws(rows, stream_);
  if (!records) return keep(records.error());
  ops.communicator->share_records(
      ops, {.records = reinterpret_cast<std::byte*>(*records), .count = rows});
}

Result<void> CudaBackend::begin_next_step() {
  LATHE_CHECK(!overlapping_, "two steps at a time");
  if (auto ok = flush(); !ok) return ok;
  if (auto ok = step_end_.set(stream_); !ok) return ok;
  if (auto ok = idle_.end_step(stream_); !ok) return ok;
  overlapping_ = true;
  staging_.turn();
  sampler_.turn();
  return {};
}

Result<void> CudaBackend::measure_idle(bool on) {
  if (on) return idle_.start();
  idle_.stop();
  return {};
}

Result<void> CudaBackend::take_drawn(const OpsContext&, std::span<const std::int32_t> tokens) {
  if (communicator_ == nullptr) {
    start_.take(tokens, sampler_.tokens(), 1);
  } else {
    constexpr std::int64_t kStep = sizeof(DrawRecord) / sizeof(std::int32_t);
    start_.take(tokens, reinterpret_cast<const std::int32_t*>(sampler_.shared()), kStep);
  }
  return {};
}

Result<void> CudaBackend::flush() {
  if (auto ok = held_.launch(stream_); !ok) return ok;
  return start_queued();
}

Result<void> CudaBackend::start_queued() {
  if (auto ok = staging_.flush(stream_); !ok) return ok;
  return start_.run(stream_);
}

Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaBackendOptions& options) {
  auto device = open_device(options.ordinal);
  if (!device) return device.error();
  auto stream = Stream::make();
  if (!stream) return stream.error();
  auto step_end = Mark::make();
  if (!step_end) return step_end.error();
  return std::unique_ptr<Backend>(std::make_unique<CudaBackend>(
      std::move(*device), std::move(*stream), std::move(*step_end), options));
}

}  // namespace lathe::cuda
