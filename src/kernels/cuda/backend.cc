// Runs whole models on one GPU. Every operator launches its kernels on one stream; decode steps are
// captured as CUDA graphs and replayed.
#include "kernels/cuda/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/rows.h"
#include "kernels/announced_source.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/device_rows.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/exchange/cuda_communicator.h"
#include "kernels/cuda/operators/attend_selected.h"
#include "kernels/cuda/operators/before_norm.h"
#include "kernels/cuda/operators/compress.h"
#include "kernels/cuda/operators/delta_rule.h"
#include "kernels/cuda/operators/expert_layer.h"
#include "kernels/cuda/operators/hyper_params.h"
#include "kernels/cuda/operators/quantized_x.h"
#include "kernels/cuda/operators/sampler.h"
#include "kernels/cuda/operators/select_keys.h"
#include "kernels/cuda/runtime/idle_times.h"
#include "kernels/cuda/runtime/random_weights.h"
#include "kernels/cuda/runtime/rope_tables.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda/runtime/step_start.h"
#include "kernels/cuda/runtime/stored_counts.h"
#include "kernels/cuda/runtime/upload.h"
#include "kernels/cuda/runtime/weight_memory.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/matmul/matmul.h"
#include "kernels/cuda/sm90/matmul/pack/permute_columns.h"
#include "kernels/cuda/sm90/matmul/plain/narrow_gemm.h"
#include "kernels/cuda/sm90/matmul/plain/plain_gemm.h"
#include "kernels/cuda/sm90/rowwise/attention_rows_params.h"
#include "kernels/cuda/sm90/rowwise/rowwise.h"
#include "kernels/limits.h"

namespace lathe::cuda {
namespace {

GroupedMatmulCall head_products(const HeadProducts& op) {
  const WeightStack& w = *op.w;
  const PlainWeight strides = plain_weight(w);
  return {.x = cols_at(op.x, 0, w.cols),
          .w = w.at(0),
          .out = cols_at(op.out, 0, w.rows),
          .groups = w.count(),
          .weight_stride = strides.data_stride * 8 / bits_of(w.dtype),
          .scale_stride = strides.scales_stride,
          .x_stride = op.x_stride,
          .out_stride = op.out_stride};
}

bool same_rows(const RowsView& a, const RowsView& b) {
  return a.data == b.data && a.rows == b.rows && a.cols == b.cols && a.row_stride == b.row_stride;
}

bool same_x_and_type(const MatmulCall& a, const MatmulCall& b) {
  return same_rows(a.x, b.x) && a.x.dtype == b.x.dtype && a.x_scales == b.x_scales &&
         same_format(a.w, b.w);
}

void set_codes(const QuantizedX& codes, MatmulCall& call) {
  call.x = codes.x;
  call.x_scales = codes.scales;
  call.x_scale_stride = codes.scale_stride;
}

// An f32 weight with so few outputs that the plain GEMM would compute all of them in one block.
bool is_narrow(const Product& p) {
  return p.w.dtype == DType::f32 && p.x.dtype == DType::f32 && p.out.dtype == DType::f32 &&
         p.w.rows <= kNarrowOutputs && p.w.cols % 4 == 0 && p.x.row_stride % 4 == 0 &&
         p.bias == nullptr && !p.add;
}

class CudaBackend : public Backend, public ExchangeStream {
 public:
  CudaBackend(lathe::cuda::Device device, Stream stream, Mark step_end,
              const CudaBackendOptions& options)
      : device_(std::move(device)),
        stream_(std::move(stream)),
        step_end_(std::move(step_end)),
        communicator_(options.communicator),
        plain_products_(options.plain_products) {
    if (communicator_ != nullptr) communicator_->attach(*this);
  }

  cudaStream_t next() override {
    keep(flush());
    return stream_;
  }
  void keep(const Result<void>& result) override {
    if (failed_ && !result) failed_ = result;
  }

  lathe::Device device() const override { return lathe::Device::sm90; }
  const Memory& memory() const override { return kDeviceMemory; }
  DType activations() const override { return DType::bf16; }
  bool multiplies_in(MatmulPrecision precision) const override {
    return precision != MatmulPrecision::f32;
  }

  void begin_prepare(const WeightSource& source) override {
    source_ = &source;
    weight_memory_.reset();
  }
  Result<WeightView> prepare(const WeightView& weight, std::vector<OwnedBytes>& owned) override {
    if (auto ok = make_ring(); !ok) return ok.error();
    return upload_weight(weight, *ring_, stream_, weight_memory(owned));
  }
  Result<WeightStack> prepare(const WeightStack& weights, std::vector<OwnedBytes>& owned) override {
    if (auto ok = make_ring(); !ok) return ok.error();
    return upload_weights(weights, *ring_, stream_, weight_memory(owned));
  }
  Result<std::span<const float>> prepare(std::span<const float> vector,
                                         std::vector<OwnedBytes>& owned) override {
    if (auto ok = make_ring(); !ok) return ok.error();
    auto at = upload_bytes(std::as_bytes(vector), *ring_, stream_, weight_memory(owned));
    if (!at) return at.error();
    return std::span(reinterpret_cast<const float*>(*at), vector.size());
  }
  Result<std::span<const std::int32_t>> prepare(std::span<const std::int32_t> table,
                                                std::vector<OwnedBytes>& owned) override {
    if (auto ok = make_ring(); !ok) return ok.error();
    auto at = upload_bytes(std::as_bytes(table), *ring_, stream_, weight_memory(owned));
    if (!at) return at.error();
    return std::span(reinterpret_cast<const std::int32_t*>(*at), table.size());
  }

  Result<WeightStack> random_weights(const RandomWeights& weights,
                                     std::vector<OwnedBytes>& owned) override {
    if (auto ok = make_ring(); !ok) return ok.error();
    return cuda::random_weights(weights, *ring_, stream_, weight_memory(owned));
  }
  Result<void> end_prepare() override {
    Result<void> done = ring_ == nullptr ? Result<void>() : ring_->flush(stream_);
    if (const Result<void> copied = stream_.wait(); done) done = copied;
    ring_.reset();
    source_ = nullptr;
    weight_memory_.reset();
    return done;
  }

  Result<void> reserve(std::span<const Budget> budgets) override {
    std::int64_t scratch = 0;
    for (const Budget& b : budgets) {
      if (b.kind == BudgetKind::step) {
        if (auto ok = staging_.reserve(b.bytes); !ok) return ok;
      }
      const bool kernel =
          b.kind == BudgetKind::split_partials || b.kind == BudgetKind::expanded_keys;
      if (kernel) scratch += b.bytes;
      if (b.kind == BudgetKind::schedules) scratch += b.bytes / 2;
    }
    if (scratch > 0 && scratch_.take(scratch) == nullptr) return no_scratch(scratch);
    // Not in a step: an allocation may wait for GPUs whose kernels wait for this rank.
    return communicator_ == nullptr ? Result<void>() : sampler_.reserve_records();
  }

  Result<void> upload(const OpsContext&, std::span<const std::byte> from, std::byte* to) override {
    if (auto ok = before_norm_.launch(stream_); !ok) return ok;
    return copy_to_device(from, to, stream_);
  }
  Result<void> download(const OpsContext&, const std::byte* from,
                        std::span<std::byte> to) override {
    if (auto ok = before_norm_.launch(stream_); !ok) return ok;
    if (auto ok = copy_to_host(from, to, stream_); !ok) return ok;
    if (auto ok = stream_.wait(); !ok || communicator_ == nullptr) return ok;
    return communicator_->check();
  }

  Result<void> prepare_step(const OpsContext& ops, const Plan& plan, const KeyPools& pools,
                            const StepView& step, PreparedStep& out) override {
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
  Result<std::span<const std::int32_t>> prepare_list(const OpsContext&,
                                                     std::span<const std::int32_t> list) override {
    return staging_.add_list(list);
  }

  Result<void> copy_tokens(const OpsContext&, std::span<const Slot> from, std::span<const Slot> to,
                           const PoolView& pool) override {
    if (auto ok = staging_.flush(stream_); !ok) return ok;
    return move_tokens(pool, from, to, nullptr, stream_);
  }

  Result<void> prepare_draws(const OpsContext&, std::span<const SampleArgs> rows,
                             std::span<std::optional<SampledToken>> out,
                             std::int64_t places) override {
    return sampler_.prepare(rows, out, places, staging_);
  }

  bool replays() const override { return true; }
  Result<void> replay(const OpsContext&, std::uint64_t key,
                      const std::function<Result<void>()>& work) override {
    if (auto ok = staging_.flush(stream_); !ok) return ok;
    Recording& r = recordings_[key ^ start_.key() ^ sampler_.key()];
    if (!r.graph) {
      // The first run is not captured: it allocates scratch and copies tables to the device, which
      // a capture must not do.
      const auto run = [&]() -> Result<void> {
        if (auto ok = work(); !ok) return ok;
        return before_norm_.launch(stream_);
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

  void embed(const OpsContext&, const Embed& op) override {
    put("embed", op.out, launch_embed,
        EmbedParams{.table = op.table.data,
                    .dtype = op.table.dtype,
                    .tokens = op.tokens.data(),
                    .out = device_rows(op.out),
                    .rows = op.out.rows,
                    .cols = op.out.cols,
                    .first = op.first,
                    .vocab = op.table.rows,
                    .scale = op.scale});
  }
  void gather_rows(const OpsContext&, const RowsView& x, std::span<const std::int32_t> rows,
                   const MutableRowsView& out) override {
    put("gather_rows", out, launch_gather_rows,
        GatherRowsParams{device_rows(x), rows.data(), device_rows(out), out.rows, out.cols});
  }
  void rms_norm(const OpsContext&, const RmsNorm& op) override {
    const auto joined = before_norm_.launch_with(op, stream_);
    if (!joined) return keep(joined.error());
    if (*joined) return;
    put("rms_norm", op.out, launch_norm,
        NormParams{.x = device_rows(op.x),
                   .weight = op.weight.data(),
                   .out = device_rows(op.out),
                   .rows = op.x.rows,
                   .cols = op.x.cols / op.heads,
                   .heads = op.heads,
                   .eps = op.eps,
                   .add = op.add});
  }
  void layer_norm(const OpsContext&, const LayerNorm& op) override {
    put("layer_norm", op.out, launch_norm,
        NormParams{.x = device_rows(op.x),
                   .weight = op.weight.data(),
                   .bias = op.bias.data(),
                   .out = device_rows(op.out),
                   .rows = op.x.rows,
                   .cols = op.x.cols,
                   .eps = op.eps});
  }
  void gated_activation(const OpsContext&, const GatedActivation& op) override {
    ActivationParams p{.activation = activation_terms(op.activation),
                       .gate = device_rows(op.gate),
                       .out = device_rows(op.out),
                       .rows = op.out.rows,
                       .cols = op.out.cols};
    if (op.up.cols > 0) p.up = device_rows(op.up);
    put("gated_activation", op.out, launch_gated_activation, p);
  }
  void gate_rows(const OpsContext&, const GateRows& op) override {
    put("gate_rows", op.x, launch_gate_rows,
        GateRowsParams{.x = device_rows(op.x),
                       .gate = device_rows(op.gate),
                       .rows = op.x.rows,
                       .cols = op.x.cols / op.heads,
                       .heads = op.heads,
                       .gate_head = op.gate_head,
                       .one = op.gate.cols == 1});
  }
  void add_rows(const OpsContext&, const RowsView& x, const MutableRowsView& out) override {
    put("add_rows", out, launch_copy_rows,
        CopyRowsParams{.x = device_rows(x),
                       .out = device_rows(out),
                       .rows = x.rows,
                       .cols = x.cols,
                       .add = true});
  }
  void scale_rows(const OpsContext&, const ScaleRows& op) override {
    put("scale_rows", op.rows, launch_scale_rows,
        ScaleRowsParams{.x = reinterpret_cast<float*>(op.rows.data),
                        .stride = op.rows.row_stride,
                        .factor = op.factor.empty() ? nullptr : op.factor.data(),
                        .times = op.times,
                        .limit = op.limit,
                        .rows = op.rows.rows,
                        .cols = op.rows.cols});
  }
  void cast_rows(const OpsContext&, const CastRows& op) override {
    put("cast_rows", op.out, launch_copy_rows,
        CopyRowsParams{.x = device_rows(op.x),
                       .out = device_rows(op.out),
                       .rows = op.x.rows,
                       .cols = op.x.cols,
                       .heads = op.heads,
                       .x_head = op.x_head,
                       .out_head = op.out_head});
  }
  void find_non_finite(const OpsContext&, const FindNonFinite& op) override {
    put("find_non_finite", op.x, launch_find_non_finite,
        NonFiniteParams{device_rows(op.x), op.rows.empty() ? nullptr : op.rows.data(),
                        op.first.data(), op.x.rows, op.x.cols, op.layer});
  }

  // For weights in GPTQ's act order x is permuted, and gated products are computed by parts.
  // Neighbouring products with the same x and weight type share one
  // launch, and the split of K is chosen for all their rows together. An operator passes the same
  // list in every step, so its bits do not change.
  void matmul(const OpsContext& ops, std::span<const Product> products) override {
    const Arena::Scope scope(*ops.tensors);
    RowsView quantized;  // the x that `codes` were quantized from
    MutableRowsView permuted;
    QuantizedX codes;
    std::array<MatmulCall, kMatmulCalls> calls;
    std::size_t count = 0;  // calls collected for the next launch
    const auto multiply_all = [&] { multiply(std::span(calls).first(std::exchange(count, 0))); };
    for (const Product& p : products) {
      MatmulCall call{p.x, p.w, p.out, p.bias, p.add};
      call.w.columns = nullptr;
      const bool empty = p.x.rows == 0 || p.w.cols == 0;  // a rank may have nothing of a width
      if (is_narrow(p) || plain_products_ || empty || !matmul_takes(call)) {
        multiply_all();
        multiply_plain(ops, p);
        continue;
      }
      if (p.w.columns != nullptr) {
        multiply_all();  // the previous product may read the same buffer
        if (permuted.cols != p.x.cols)
          permuted = alloc_rows(*ops.tensors, p.x.rows, p.x.cols, DType::bf16);
        permute(p, permuted);
        call.x = constant(permuted);
      }
      if (takes_codes(ops.precision, p.x, p.w)) {
        if (!same_rows(quantized, p.x)) codes = quantize(ops, p.x);
        quantized = p.x;
        set_codes(codes, call);
      }
      if (count == kMatmulCalls || (count > 0 && !same_x_and_type(calls[0], call))) multiply_all();
      calls[count++] = call;
    }
    multiply_all();
  }
  bool gated_matmul(const OpsContext& ops, const GatedProduct& op) override {
    MatmulCall call{
        .x = op.x, .w = op.gate, .out = op.out, .activation = &op.activation, .up = op.up};
    if (plain_products_ || op.x.rows == 0 || !matmul_takes(call)) return false;
    const Arena::Scope scope(*ops.tensors);
    if (takes_codes(ops.precision, op.x, op.gate)) set_codes(quantize(ops, op.x), call);
    multiply(std::span(&call, 1));
    return true;
  }
  void head_matmul(const OpsContext& ops, const HeadProducts& op) override {
    const Arena::Scope scope(*ops.tensors);
    const GroupedMatmulCall call = head_products(narrowed(ops, op));
    if (!plain_products_ && op.x.rows > 0 && grouped_matmul_takes(call)) {
      keep(flush());
      keep(grouped_matmul_on_device(call, stream_));
      return;
    }
    put("head_gemm", op.out, launch_plain_gemm,
        PlainGemm{.x = device_rows(op.x),
                  .w = plain_weight(*op.w),
                  .out = device_rows(op.out),
                  .rows = op.x.rows,
                  .count = op.w->count(),
                  .x_stride = op.x_stride,
                  .out_stride = op.out_stride});
  }
  void expert_layer(const OpsContext& ops, const ExpertLayer& op) override {
    keep(flush());
    CombineExperts sum;
    keep(cuda::expert_layer(op, ops.precision, plain_products_, *ops.tensors, stream_, &sum));
    if (sum.rows > 0) before_norm_.hold(sum);
  }

  Result<void> rope_write(const OpsContext&, const lathe::RopeWrite& op,
                          const PoolView& pool) override {
    if (auto ok = flush(); !ok) return ok;
    RopeWrite own{.k = op.k,
                  .q = op.q,
                  .positions = op.positions,
                  .slots = op.slots,
                  .place = op.place,
                  .scales = op.scales,
                  .q_scale = op.q_scale,
                  .q_out = op.q_out};
    if (op.table != nullptr) {
      auto table = tables_.of(*op.table, stream_);
      if (!table) return table.error();
      own.table = *table;
    }
    auto counts = counts_.of(op.tally, stream_);
    if (!counts) return counts.error();
    own.counts = *counts;
    return rope_quantize_write(own, pool, stream_);
  }
  Result<void> rotate_rows(const OpsContext&, const RopeTable& table,
                           std::span<const LocalPos> positions, const MutableRowsView& rows,
                           std::int64_t heads, std::int64_t first) override {
    if (auto ok = flush(); !ok) return ok;
    auto view = tables_.of(table, stream_);
    if (!view) return view.error();
    return apply_rope(*view, positions, rows, heads, first, RopeDirection::forward, stream_);
  }
  Result<bool> prepare_qkv(const OpsContext&, const QkvRows& op, const PoolView& pool) override {
    auto table = tables_.of(*op.table, stream_);
    if (!table) return table.error();
    const auto counts = counts_.of(op.tally, stream_);
    if (!counts) return counts.error();
    const std::optional<QkvParams> params = qkv_params(op, pool, *table, *counts);
    if (params) put("prepare_qkv", op.kv, launch_qkv, *params);
    return params.has_value();
  }
  Result<bool> prepare_latent(const OpsContext& ops, const LatentRows& op,
                              const PoolView& pool) override {
    // Absorbed heads go through a bf16 GEMM; plain GEMMs read q in f32.
    if (op.absorbs != nullptr && plain_products_) return false;
    auto table = tables_.of(*op.table, stream_);
    if (!table) return table.error();
    const auto counts = counts_.of(op.tally, stream_);
    if (!counts) return counts.error();
    const Arena::Scope scope(*ops.tensors);
    MutableRowsView nope;
    if (op.absorbs != nullptr) {
      nope = alloc_rows(*ops.tensors, op.q.rows, op.heads * op.qk_nope, DType::bf16);
    }
    const auto params = latent_rows_params(op, pool, *table, *counts, nope);
    if (!params) return false;
    put("prepare_latent", op.k, launch_latent_rows, *params);
    if (op.absorbs != nullptr) {
      head_matmul(ops,
                  {constant(nope), op.qk_nope, op.absorbs, op.q_out, op.q_out.cols / op.heads});
    }
    return true;
  }
  Result<void> unrotate_rows(const OpsContext&, const RopeTable& table,
                             std::span<const LocalPos> positions, const MutableRowsView& rows,
                             std::int64_t heads, std::int64_t first) override {
    if (auto ok = flush(); !ok) return ok;
    auto view = tables_.of(table, stream_);
    if (!view) return view.error();
    return apply_rope(*view, positions, rows, heads, first, RopeDirection::inverse, stream_);
  }
  Result<void> compress(const OpsContext& ops, const Compress& op, const PoolView& pool) override {
    if (auto ok = flush(); !ok) return ok;
    auto table = tables_.of(*op.table, stream_);
    if (!table) return table.error();
    return cuda::compress(op, *table, pool, *ops.tensors, stream_);
  }
  Result<void> delta_rule(const OpsContext& ops, const DeltaRule& op) override {
    if (auto ok = flush(); !ok) return ok;
    return cuda::delta_rule(op, *ops.tensors, stream_);
  }
  void hyper_mix(const OpsContext&, const HyperMix& op) override {
    HyperMixParams p = mix_params(op);
    p.mix = floats(op.mix);
    p.mix_stride = op.mix.row_stride;
    p.iterations = op.iterations;
    p.post_scale = op.post_scale;
    p.post_eps = op.post_eps;
    keep(flush());
    before_norm_.hold(p);
  }
  void hyper_add(const OpsContext&, const HyperAdd& op) override {
    check_streams(op.streams, constant(op.x), op.y);
    put("hyper_add", op.x, launch_hyper_add,
        HyperAddParams{.y = floats(op.y),
                       .mix = floats(op.mix),
                       .x = floats(op.x),
                       .y_stride = op.y.row_stride,
                       .mix_stride = op.mix.row_stride,
                       .x_stride = op.x.row_stride,
                       .rows = op.y.rows,
                       .n = op.y.cols,
                       .combs = op.mix.cols > op.streams});
  }
  void hyper_head(const OpsContext&, const HyperHead& op) override {
    put("hyper_head", op.out, launch_hyper_mix, mix_params(op));
  }
  Result<void> write_rows(const OpsContext&, const RowsView& rows, std::span<const Slot> slots,
                          const PoolView& pool, const TensorScales& scales,
                          ValueTally* tally) override {
    if (auto ok = flush(); !ok) return ok;
    const auto counts = counts_.of(tally, stream_);
    if (!counts) return counts.error();
    return encode_rows(rows, slots, pool, scales, stream_, *counts);
  }
  Result<void> collect_counts() override { return counts_.collect(stream_); }
  Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) override {
    if (auto ok = flush(); !ok) return ok;
    return cuda::select_keys(op, *ops.tensors, stream_);
  }
  Result<void> attend(const OpsContext& ops, const AttendOp& op) override {
    if (auto ok = flush(); !ok) return ok;
    const auto kernel = kernel_of(*op.step->route);
    if (!kernel) return kernel.error();
    if (op.step->route->adapter) {
      return attend_selected(op, (*kernel)->attend, execution(ops), *ops.tensors, stream_);
    }
    const std::int64_t entries = entries_width(*op.plan, *op.step);
    if (entries == 0) return (*kernel)->attend(attend_args(op, execution(ops)));
    const Arena::Scope scope(*ops.tensors);
    AttendOp listed = op;
    const auto slots = list_entries(*op.step, *op.compressed, entries, *ops.tensors, stream_);
    if (!slots) return slots.error();
    listed.slots = *slots;
    listed.slots_width = entries;
    return (*kernel)->attend(attend_args(listed, execution(ops)));
  }

  void sample(const OpsContext& ops, std::span<const SampleArgs> rows,
              std::span<std::optional<SampledToken>> out) override {
    if (!sampler_.is_prepared()) keep(sampler_.prepare(rows, out, std::ssize(rows), staging_));
    keep(flush());
    keep(sampler_.start(*ops.tensors, stream_));
  }

  Result<void> wait() override {
    keep(before_norm_.launch(stream_));
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

  void share_draws(const OpsContext& ops, std::int64_t rows) override {
    keep(flush());
    auto records = sampler_.place_draws(rows, stream_);
    if (!records) return keep(records.error());
    ops.communicator->share_records(
        ops, {.records = reinterpret_cast<std::byte*>(*records), .count = rows});
  }

  bool overlaps() const override { return true; }
  Result<void> begin_next_step() override {
    LATHE_CHECK(!overlapping_, "two steps at a time");
    if (auto ok = flush(); !ok) return ok;
    if (auto ok = step_end_.set(stream_); !ok) return ok;
    if (auto ok = idle_.end_step(stream_); !ok) return ok;
    overlapping_ = true;
    staging_.turn();
    sampler_.turn();
    return {};
  }
  Result<void> measure_idle(bool on) override {
    if (on) return idle_.start();
    idle_.stop();
    return {};
  }
  std::vector<double> idle_seconds() override { return idle_.take(); }
  Result<void> take_drawn(const OpsContext&, std::span<const std::int32_t> tokens) override {
    if (communicator_ == nullptr) {
      start_.take(tokens, sampler_.tokens(), 1);
    } else {
      constexpr std::int64_t kStep = sizeof(DrawRecord) / sizeof(std::int32_t);
      start_.take(tokens, reinterpret_cast<const std::int32_t*>(sampler_.shared()), kStep);
    }
    return {};
  }

 private:
  struct Recording {
    bool ran = false;
    std::optional<Graph> graph;
  };
  // Before every operator: starts the copies and schedules that it may read.
  Result<void> flush() {
    if (auto ok = before_norm_.launch(stream_); !ok) return ok;
    if (auto ok = staging_.flush(stream_); !ok) return ok;
    return start_.run(stream_);
  }
  void multiply(std::span<const MatmulCall> calls) {
    if (calls.empty()) return;
    keep(flush());
    keep(matmul_on_device(calls, stream_));
  }
  void multiply_plain(const OpsContext& ops, const Product& p) {
    if (is_narrow(p)) return multiply_narrow(ops, p);
    put("plain_gemm", p.out, launch_plain_gemm,
        PlainGemm{.x = device_rows(p.x),
                  .w = plain_weight(p.w),
                  .out = device_rows(p.out),
                  .rows = p.x.rows,
                  .bias = p.bias,
                  .add = p.add});
  }
  // Writes x with its columns in the order of a weight's.
  void permute(const Product& p, const MutableRowsView& out) {
    put("permute_columns", p.x, launch_permute_columns,
        PermuteColumns{.x = reinterpret_cast<const std::uint16_t*>(p.x.data),
                       .columns = p.w.columns,
                       .out = reinterpret_cast<std::uint16_t*>(out.data),
                       .rows = p.x.rows,
                       .cols = p.x.cols,
                       .x_stride = p.x.row_stride,
                       .out_stride = out.row_stride});
  }
  QuantizedX quantize(const OpsContext& ops, const RowsView& x) {
    keep(flush());
    auto codes = cuda::quantize(x, ops.precision, *ops.tensors, stream_);
    if (!codes) keep(codes.error());
    return codes ? *codes : QuantizedX{};
  }
  void multiply_narrow(const OpsContext& ops, const Product& p) {
    const Arena::Scope scope(*ops.tensors);
    NarrowGemm narrow{.x = floats(p.x),
                      .w = reinterpret_cast<const float*>(p.w.data),
                      .out = floats(p.out),
                      .x_stride = p.x.row_stride,
                      .out_stride = p.out.row_stride,
                      .rows = p.x.rows,
                      .cols = p.w.cols,
                      .outputs = static_cast<std::int32_t>(p.w.rows)};
    narrow.parts = ops.tensors->take_array<float>(narrow_parts(narrow));
    put("narrow_gemm", p.out, launch_narrow_gemm, narrow);
  }
  Execution execution(const OpsContext& ops) {
    Execution out;
    out.batch_invariant = ops.execution.batch_invariant;
    out.stream = stream_.get();
    out.scratch = &scratch_;
    return out;
  }
  // Casts x to bf16, which the tensor core GEMMs read.
  HeadProducts narrowed(const OpsContext& ops, HeadProducts op) {
    const WeightStack& w = *op.w;
    if (plain_products_ || op.x.dtype == DType::bf16 || op.x.rows == 0) return op;
    const MutableRowsView x = alloc_rows(*ops.tensors, op.x.rows, w.count() * w.cols, DType::bf16);
    cast_rows(ops, {.x = cols_at(op.x, 0, w.cols),
                    .out = cols_at(x, 0, w.cols),
                    .heads = w.count(),
                    .x_head = op.x_stride,
                    .out_head = w.cols});
    op.x = constant(x);
    op.x_stride = w.cols;
    return op;
  }

  Result<void> make_ring() {
    if (ring_ != nullptr) return {};
    auto ring = UploadRing::make(source_);
    if (!ring) return ring.error();
    ring_ = std::move(*ring);
    return {};
  }

  WeightMemory& weight_memory(std::vector<OwnedBytes>& owned) {
    if (!weight_memory_ || weight_memory_->owner() != &owned) {
      const auto* announced = dynamic_cast<const AnnouncedSource*>(source_);
      weight_memory_.emplace(owned, announced == nullptr ? 0 : announced->bytes());
    }
    return *weight_memory_;
  }

  template <class Rows, class Params>
  void put(const char* kernel, const Rows& rows, cudaError_t (*launch)(const Params&, cudaStream_t),
           const Params& p) {
    keep(flush());
    const cudaError_t status = launch(p, stream_);
    if (status == cudaSuccess) return;
    keep(launch_result(status, {kernel, fmt::format("{} rows of {}", rows.rows, rows.cols),
                                std::source_location::current()}));
  }

  lathe::cuda::Device device_;
  Stream stream_;
  Mark step_end_;             // recorded after the step before begin_next_step()
  bool overlapping_ = false;  // wait() is for that step, which is still in flight
  IdleTimes idle_;
  CudaCommunicator* communicator_;
  bool plain_products_;
  Scratch scratch_{kDeviceMemory};
  std::unique_ptr<UploadRing> ring_;           // exists only while weights are prepared
  const WeightSource* source_ = nullptr;       // of the weights that are prepared; or null
  std::optional<WeightMemory> weight_memory_;  // of them
  Staging staging_;
  StepStart start_;
  BeforeNorm before_norm_;
  Sampler sampler_;
  StoredCounts counts_;
  RopeTables tables_;
  std::map<std::uint64_t, Recording> recordings_;  // by the key of replay(), combined with the keys
                                                   // of start_ and sampler_
  // The first error of an operator that returns nothing; wait() returns and clears it.
  Result<void> failed_;
};

}  // namespace

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
