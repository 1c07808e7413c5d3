#include "kernels/cuda/operators/expert_layer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rows.h"
#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/operators/expert_calls.h"
#include "kernels/cuda/operators/quantized_x.h"
#include "kernels/cuda/sm90/matmul/matmul.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"
#include "kernels/cuda/sm90/matmul/plain/plain_gemm.h"
#include "kernels/cuda/sm90/matmul/plain/widen.h"
#include "kernels/cuda/sm90/moe/moe.h"
#include "kernels/cuda/sm90/rowwise/rowwise.h"
#include "kernels/limits.h"

namespace lathe::cuda {
namespace {

// Rows up to which the weighted sum may wait for a norm: a block a row.
constexpr std::int64_t kHeldRows = 64;

bool any_packed(const WeightStack& w) { return w.count() > 0 && is_packed(w.at(0)); }

// Weights first .. first + n - 1 of a stack; an empty stack stays empty.
WeightStack part_of(const WeightStack& w, std::int64_t first, std::int64_t n) {
  if (w.count() == 0) return w;
  WeightStack out = WeightStack::of(n, w.dtype, w.rows, w.cols);
  for (std::int64_t i = 0; i < n; ++i) out.set(i, w.at(first + i));
  return out;
}

std::span<const float> part_of(std::span<const float> bias, std::int64_t first, std::int64_t n,
                               std::int64_t each) {
  if (bias.empty()) return bias;
  return bias.subspan(static_cast<std::size_t>(first * each), static_cast<std::size_t>(n * each));
}

// One pass: rows that go through the experts together.
class Pass {
 public:
  Pass(const ExpertLayer& op, MatmulPrecision precision, bool plain, Arena& tensors,
       cudaStream_t stream, CombineExperts* held, const SharedExperts* shared)
      : op_(op),
        e_(*op.experts),
        precision_(precision),
        plain_(plain),
        grouped_(!plain && grouped_products_take(op)),
        widened_(!plain && op.x.dtype == DType::bf16 &&
                 (any_packed(e_.gate) || any_packed(e_.up) || any_packed(e_.down))),
        coded_(grouped_ && experts_take_codes(op, precision)),
        tensors_(tensors),
        stream_(stream),
        held_(held),
        shared_(shared) {}

  /// Most rows of a pass.
  std::int64_t most_rows() const {
    if (!grouped_ && !widened_) return kPlainExpertRows;
    // Codes and scales of activation(gate, up), which are in memory at the same time.
    const std::int64_t codes = coded_ ? e_.down.cols + e_.down.cols / 32 : 0;
    const std::int64_t bytes = op_.choice.top_k * (2 * (op_.x.cols + e_.down.cols) + codes);
    return std::max<std::int64_t>(1, kExpertPassBytes / bytes);
  }

  /// routed: what the router reads; tokens: the rows' tokens, where the router chooses experts by
  /// token.
  void run(const RowsView& x, const RowsView& routed, const std::int32_t* tokens,
           const MutableRowsView& out) {
    const Arena::Scope scope(tensors_);
    const Router& r = op_.choice;
    choices_ = x.rows * r.top_k;
    weights_ = tensors_.take_array<float>(choices_);
    places_ = tensors_.take_array<std::int32_t>(choices_);
    rows_ = tensors_.take_array<std::int32_t>(choices_);
    offsets_ = tensors_.take_array<std::int32_t>(r.experts + 1);
    here_ = offsets_ + op_.first;
    gated_ = shared_gated_ = {};
    if (coded_) take_gated(x.rows);
    if (shared_ != nullptr) take_shared(x.rows);
    if (coded_) {
      combine(coded_experts(x, routed, tokens), out);
    } else if (grouped_) {
      // `made` first holds the experts' inputs, then their outputs.
      const MutableRowsView gated = alloc_rows(tensors_, choices_, e_.down.cols, DType::bf16);
      const MutableRowsView made = alloc_rows(tensors_, choices_, x.cols, DType::bf16);
      place(routed, tokens, x, made);
      weigh(made);
      up(up_call(op_, constant(made), gated, here_), x, nullptr);
      down(down_call(op_, constant(gated), made, here_), nullptr);
      combine(constant(made), out);
    } else if (widened_) {
      place(routed, tokens, {}, {});
      combine(widened_experts(x), out);
    } else {
      place(routed, tokens, {}, {});
      combine(plain_experts(x), out);
    }
  }
  Result<void> result() const { return result_; }

 private:
  // Rows of shared experts of the same width follow the choices', so that one launch quantizes
  // both.
  void take_gated(std::int64_t rows) {
    const bool both = shared_ != nullptr && shared_->down.cols == e_.down.cols;
    const std::int64_t own = own_row(choices_);
    gated_ = alloc_rows(tensors_, both ? own + rows : choices_, e_.down.cols, DType::bf16);
    if (both) shared_gated_ = rows_at(gated_, own, rows);
  }
  // Buffers of the shared experts.
  void take_shared(std::int64_t rows) {
    if (shared_gated_.data == nullptr) {
      shared_gated_ = alloc_rows(tensors_, rows, shared_->down.cols, DType::bf16);
    }
    const MatmulCall sums = shared_down(*shared_, constant(shared_gated_), nullptr);
    const auto parts = matmul_parts({&sums, 1});
    if (!parts) return keep(parts.error());
    shared_parts_ = *parts;
    shared_sums_ = tensors_.take_array<float>(shared_parts_ * rows * shared_->down.rows);
    if (shared_->factor.rows > 0) shared_factor_ = alloc_rows(tensors_, rows, 1);
  }
  // Launches a grouped GEMM with the shared experts' one, if there are any. codes: of the shared
  // experts' rows, or null.
  void up(const GroupedMatmulCall& call, const RowsView& x, const QuantizedX* codes) {
    if (shared_ == nullptr) return keep(grouped_matmul_on_device(call, stream_));
    DenseCall dense{.call = shared_up(*shared_, x, shared_gated_)};
    if (codes != nullptr) set_codes(*codes, dense.call);
    if (shared_->factor.rows > 0) {
      dense.factor = reinterpret_cast<const float*>(shared_factor_.data);
      dense.factor_stride = shared_factor_.row_stride;
    }
    launch_with(call, dense);
  }
  void down(GroupedMatmulCall call, const QuantizedX* codes) {
    // The kernel of packed weights and few tokens lets the next one begin before it has waited.
    call.offsets_known = !any_packed(e_.gate);
    if (shared_ == nullptr) return keep(grouped_matmul_on_device(call, stream_));
    DenseCall dense{.call = shared_down(*shared_, constant(shared_gated_), shared_sums_)};
    if (codes != nullptr) set_codes(*codes, dense.call);
    launch_with(call, dense);
  }
  void launch_with(GroupedMatmulCall call, const DenseCall& dense) {
    call.dense = &dense;
    keep(grouped_matmul_on_device(call, stream_));
  }

  // Chooses the rows' experts and places the choices. sorted: also gathers x in the order of
  // places, if it has data. codes: also quantizes x; precondition: joins_codes().
  void place(const RowsView& routed, const std::int32_t* tokens, const RowsView& x,
             const MutableRowsView& sorted, const DispatchCodes& codes = {}) {
    const Router& r = op_.choice;
    const Arena::Scope scope(tensors_);
    RouteParams route = route_params(routed, tokens);
    PlaceParams places{.choices = choices_,
                       .experts = r.experts,
                       .top_k = r.top_k,
                       .offsets = offsets_,
                       .places = places_,
                       .rows = rows_};
    const bool together = dispatch_takes(choices_, r.experts);
    if (!together || routed.rows > kDispatchRoutes) {
      route.ids = tensors_.take_array<std::int32_t>(choices_);
      places.ids = route.ids;
      put(launch_route, route);
      route.logits = nullptr;
    }
    if (!together) {
      places.block_counts = tensors_.take_array<std::int32_t>(place_blocks(choices_) * r.experts);
      put(launch_place, places);
      if (sorted.data != nullptr) gather(x, sorted);
      return;
    }
    DispatchParams p{.route = route, .place = places};
    if (codes.codes != nullptr) {
      p.x = x.data;
      p.x_bytes = bytes_of(x.dtype, x.row_stride);
      p.codes = codes;
      p.place.rows = nullptr;
    }
    const std::int64_t bytes = bytes_of(x.dtype, x.cols);
    const bool words = sorted.data != nullptr && x.dtype == sorted.dtype && bytes % 16 == 0 &&
                       bytes_of(x.dtype, x.row_stride) % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
    if (words) {
      p.x = x.data;
      p.sorted = sorted.data;
      p.x_bytes = bytes_of(x.dtype, x.row_stride);
      p.sorted_bytes = bytes_of(x.dtype, sorted.row_stride);
      p.words = bytes / 16;
      p.place.rows = nullptr;
    }
    put(launch_dispatch, p);
    if (sorted.data != nullptr && !words) gather(x, sorted);
  }
  // Whether one launch can place the choices and quantize x for them.
  bool joins_codes(const RowsView& x) const {
    return dispatch_takes(choices_, op_.choice.experts) && !op_.choice.weighs_inputs &&
           bytes_of(x.dtype, x.row_stride) % 8 == 0 &&
           reinterpret_cast<std::uintptr_t>(x.data) % 8 == 0;
  }
  // Computes the router's logits; the parameters have no ids yet.
  RouteParams route_params(const RowsView& x, const std::int32_t* tokens) {
    const Router& r = op_.choice;
    const MutableRowsView logits = alloc_rows(tensors_, x.rows, r.experts);
    const MatmulCall call{x, op_.router, logits, data_or_null(op_.router_bias)};
    const bool takes = !plain_ && matmul_takes(call);
    if (shared_ != nullptr && shared_->factor.rows > 0) {
      const MatmulCall factor{op_.x, shared_->factor, shared_factor_};
      if (takes && multiply_together(call, factor)) return params_of(logits, tokens);
      keep(matmul_on_device({&factor, 1}, stream_));
    }
    if (takes) {
      keep(matmul_on_device({&call, 1}, stream_));
    } else {
      put(launch_plain_gemm, PlainGemm{.x = device_rows(x),
                                       .w = plain_weight(op_.router),
                                       .out = device_rows(logits),
                                       .rows = x.rows,
                                       .bias = call.bias});
    }
    return params_of(logits, tokens);
  }
  // One launch for two GEMMs of an x, if their bits are those of two.
  bool multiply_together(const MatmulCall& a, const MatmulCall& b) {
    const MatmulCall both[] = {a, b};
    if (a.x.data != b.x.data || !same_format(a.w, b.w)) return false;
    const auto parts = matmul_parts(both), of_a = matmul_parts({&a, 1}),
               of_b = matmul_parts({&b, 1});
    if (!parts || !of_a || !of_b || *parts != *of_a || *parts != *of_b) return false;
    keep(matmul_on_device(both, stream_));
    return true;
  }
  RouteParams params_of(const MutableRowsView& logits, const std::int32_t* tokens) const {
    const Router& r = op_.choice;
    return {.logits = reinterpret_cast<const float*>(logits.data),
            .bias = data_or_null(r.bias),
            .expert_scale = data_or_null(r.expert_scale),
            .token_experts = r.token_experts.empty() ? nullptr : r.token_experts.data(),
            .tokens = tokens,
            .vocab = std::ssize(r.token_experts) / r.top_k,
            .weights = weights_,
            .rows = logits.rows,
            .logits_stride = logits.row_stride,
            .experts = r.experts,
            .top_k = r.top_k,
            .groups = r.groups,
            .top_groups = r.top_groups,
            .scoring = r.scoring,
            .normalize = r.normalize,
            .scale = r.scale,
            .group_by_best = r.group_best == 1};
  }
  // Multiplies the experts' inputs by their weights, where these do not multiply the outputs.
  void weigh(const MutableRowsView& sorted) {
    if (!op_.choice.weighs_inputs) return;
    put(launch_weigh_rows, WeighRowsParams{.rows = device_rows(sorted),
                                           .weights = weights_,
                                           .places = places_,
                                           .choices = choices_,
                                           .cols = sorted.cols});
  }
  void gather(const RowsView& x, const MutableRowsView& sorted) {
    put(launch_gather_rows,
        GatherRowsParams{device_rows(x), rows_, device_rows(sorted), choices_, x.cols});
  }
  // Quantizes each row once, as it is copied to its experts.
  RowsView coded_experts(const RowsView& x, const RowsView& routed, const std::int32_t* tokens) {
    const std::int64_t own = own_row(choices_);
    {
      const Arena::Scope scope(tensors_);
      const auto codes = placed_codes(x, routed, tokens);
      if (codes) {
        QuantizedX of_shared;
        if (shared_ != nullptr) of_shared = rows_from(*codes, own);
        up(with_codes(*codes, up_call(op_, {}, rows_at(gated_, 0, choices_), here_)), {},
           &of_shared);
      } else {
        keep(codes.error());
      }
    }
    const auto codes = quantize(constant(gated_), precision_, tensors_, stream_);
    Result<QuantizedX> of_shared = QuantizedX{};
    if (codes && gated_.rows > choices_) {
      of_shared = rows_from(*codes, own);
    } else if (shared_ != nullptr) {
      of_shared = quantize(constant(shared_gated_), precision_, tensors_, stream_);
    }
    const MutableRowsView made = alloc_rows(tensors_, choices_, x.cols, DType::bf16);
    if (codes && of_shared) {
      down(with_codes(*codes, down_call(op_, {}, made, here_)), &*of_shared);
    } else {
      keep(codes ? of_shared.error() : codes.error());
    }
    return constant(made);
  }
  // Chooses the rows' experts. Codes of x in the order of places; those of shared experts follow.
  Result<QuantizedX> placed_codes(const RowsView& x, const RowsView& routed,
                                  const std::int32_t* tokens) {
    const CodePlaces to{.places = places_,
                        .copies = op_.choice.top_k,
                        .weights = op_.choice.weighs_inputs ? weights_ : nullptr,
                        .in_order = shared_ != nullptr};
    const bool joined = joins_codes(x);
    if (!joined) place(routed, tokens, {}, {});
    const CodeArrays arrays = take_codes(x.rows, x.cols, tensors_, to);
    if (!joined) return quantize(x, precision_, arrays, stream_, to);
    place(routed, tokens, x, {},
          {.codes = arrays.codes,
           .scales = arrays.scales,
           .cols = x.cols,
           .scale_stride = arrays.scale_stride,
           .own = to.in_order ? own_row(choices_) : -1,
           .power_of_two = precision_ == MatmulPrecision::fp8_pow2});
    return arrays.view(x.cols);
  }
  // The call with codes of its rows, which may have more after them.
  GroupedMatmulCall with_codes(const QuantizedX& codes, GroupedMatmulCall call) const {
    set_codes(codes, call);
    call.x.rows = choices_;
    return call;
  }
  // Widens some experts at a time to bf16, those with rows. Groups of experts depend on the weights
  // alone.
  RowsView widened_experts(const RowsView& x) {
    const MutableRowsView gated = alloc_rows(tensors_, choices_, e_.down.cols, DType::bf16);
    const MutableRowsView made = alloc_rows(tensors_, choices_, x.cols, DType::bf16);
    gather(x, made);
    weigh(made);
    for_parts({&e_.gate, &e_.up}, [&](std::int64_t first, std::int64_t n) {
      ExpertStacks part = e_;
      part.gate = in_bf16(e_.gate, first, n);
      part.up = in_bf16(e_.up, first, n);
      part.gate_bias = part_of(e_.gate_bias, first, n, e_.gate.rows);
      ExpertLayer op = op_;
      op.experts = &part;
      keep(grouped_matmul_on_device(up_call(op, constant(made), gated, here_ + first), stream_));
    });
    for_parts({&e_.down}, [&](std::int64_t first, std::int64_t n) {
      ExpertStacks part = e_;
      part.down = in_bf16(e_.down, first, n);
      part.down_bias = part_of(e_.down_bias, first, n, e_.down.rows);
      ExpertLayer op = op_;
      op.experts = &part;
      keep(grouped_matmul_on_device(down_call(op, constant(gated), made, here_ + first), stream_));
    });
    return constant(made);
  }
  // Calls body(first, n) for parts of the experts; a part's stacks fit kWidenedBytes in bf16.
  template <class Body>
  void for_parts(std::initializer_list<const WeightStack*> stacks, const Body& body) {
    std::int64_t each = 0;
    for (const WeightStack* w : stacks) each += w->count() == 0 ? 0 : 2 * w->rows * w->cols;
    const std::int64_t count = (*stacks.begin())->count();
    const std::int64_t most = std::clamp<std::int64_t>(kWidenedBytes / each, 1, count);
    for (std::int64_t first = 0; first < count; first += most) {
      const Arena::Scope scope(tensors_);
      body(first, std::min(most, count - first));
    }
  }
  // A part of a stack, widened if it is packed.
  WeightStack in_bf16(const WeightStack& stack, std::int64_t first, std::int64_t n) {
    const WeightStack part = part_of(stack, first, n);
    if (!any_packed(part)) return part;
    const std::int64_t each = part.rows * part.cols;
    auto* to = tensors_.take_array<bf16>(n * each);
    put(launch_widen, WidenWeights{.w = plain_weight(part),
                                   .rows = part.rows,
                                   .count = n,
                                   .out = to,
                                   .offsets = here_ + first});
    WeightStack out = WeightStack::of(n, DType::bf16, part.rows, part.cols);
    for (std::int64_t i = 0; i < n; ++i) {
      out.set(i, {reinterpret_cast<const std::byte*>(to + i * each), DType::bf16, part.rows,
                  part.cols});
    }
    return out;
  }
  // In f32, for weights that grouped GEMMs do not support.
  RowsView plain_experts(const RowsView& x) {
    const auto product = [&](const RowsView& from, const WeightStack& w,
                             std::span<const float> bias, const MutableRowsView& out) {
      // No expert has more rows than x.
      put(launch_plain_gemm, PlainGemm{.x = device_rows(from),
                                       .w = plain_weight(w),
                                       .out = device_rows(out),
                                       .rows = x.rows,
                                       .bias = data_or_null(bias),
                                       .bias_stride = w.rows,
                                       .count = w.count(),
                                       .offsets = here_});
    };
    const MutableRowsView gate = alloc_rows(tensors_, choices_, e_.gate.rows);
    ActivationParams activation{.activation = activation_terms(op_.activation),
                                .gate = device_rows(constant(gate)),
                                .out = device_rows(gate),
                                .rows = choices_,
                                .cols = e_.down.cols};
    MutableRowsView up;
    if (e_.up.count() > 0) {
      up = alloc_rows(tensors_, choices_, e_.up.rows);
      activation.up = device_rows(constant(up));
    }
    {
      const Arena::Scope scope(tensors_);
      const DType dtype = op_.choice.weighs_inputs ? DType::f32 : x.dtype;
      const MutableRowsView sorted = alloc_rows(tensors_, choices_, x.cols, dtype);
      gather(x, sorted);
      weigh(sorted);
      product(constant(sorted), e_.gate, e_.gate_bias, gate);
      if (e_.up.count() > 0) product(constant(sorted), e_.up, {}, up);
    }
    put(launch_gated_activation, activation);
    const MutableRowsView made = alloc_rows(tensors_, choices_, x.cols);
    product(constant(gate), e_.down, e_.down_bias, made);
    return constant(made);
  }
  void combine(const RowsView& made, const MutableRowsView& out) {
    const bool some = e_.gate.count() < op_.choice.experts;
    const CombineExperts p{.made = device_rows(made),
                           .weights = op_.choice.weighs_inputs ? nullptr : weights_,
                           .places = places_,
                           .begin = some ? here_ : nullptr,
                           .end = some ? here_ + e_.gate.count() : nullptr,
                           .out = reinterpret_cast<float*>(out.data),
                           .out_stride = out.row_stride,
                           .rows = out.rows,
                           .cols = out.cols,
                           .top_k = op_.choice.top_k,
                           .add = op_.add,
                           .shared = shared_sums_,
                           .shared_parts = shared_parts_,
                           .shared_first = !op_.add};
    if (held_ != nullptr && out.rows <= kHeldRows && out.rows == op_.x.rows) {
      *held_ = p;
    } else {
      put(launch_combine_experts, p);
    }
  }

  void keep(const Result<void>& result) {
    if (result_ && !result) result_ = result;
  }
  template <class Params>
  void put(cudaError_t (*launch)(const Params&, cudaStream_t), const Params& p) {
    const cudaError_t status = launch(p, stream_);
    if (status == cudaSuccess) return;
    keep(launch_result(status, {"expert_layer",
                                fmt::format("{} choices of {}, {} experts", choices_, op_.x.cols,
                                            op_.choice.experts),
                                std::source_location::current()}));
  }

  const ExpertLayer& op_;
  const ExpertStacks& e_;
  MatmulPrecision precision_;
  bool plain_, grouped_, widened_, coded_;
  Arena& tensors_;
  cudaStream_t stream_;
  CombineExperts* held_;
  const SharedExperts* shared_;
  // Of codes: [choices, width] bf16, and the shared experts' rows after them if these are as wide.
  MutableRowsView gated_;
  MutableRowsView shared_gated_, shared_factor_;  // [rows, width] bf16; [rows, 1] f32
  float* shared_sums_ = nullptr;                  // [shared_parts_, rows, n]
  std::int32_t shared_parts_ = 0;
  // Buffers of the current pass.
  std::int64_t choices_ = 0;
  float* weights_ = nullptr;
  std::int32_t *places_ = nullptr, *rows_ = nullptr, *offsets_ = nullptr;
  const std::int32_t* here_ = nullptr;  // offsets_ from the first expert of the stacks on
  Result<void> result_;
};

}  // namespace

Result<void> expert_layer(const ExpertLayer& op, MatmulPrecision precision, bool plain,
                          Arena& tensors, cudaStream_t stream, CombineExperts* held,
                          const SharedExperts* shared) {
  if (op.choice.experts > kMostExperts) {
    return Error{ErrorCode::unsupported, "experts", fmt::format("at most {}", kMostExperts),
                 fmt::format("{}", op.choice.experts), "--device cpu"};
  }
  if (held != nullptr) *held = {};
  Pass pass(op, precision, plain, tensors, stream, held, shared);
  const std::int64_t most = pass.most_rows();
  const std::int64_t passes = (op.x.rows + most - 1) / most;
  for (std::int64_t i = 0; i < passes; ++i) {
    const std::int64_t first = op.x.rows * i / passes;
    const std::int64_t rows = op.x.rows * (i + 1) / passes - first;
    const std::int32_t* tokens = op.tokens.empty() ? nullptr : op.tokens.data() + first;
    pass.run(rows_at(op.x, first, rows), rows_at(op.of_router(), first, rows), tokens,
             rows_at(op.out, first, rows));
  }
  return pass.result();
}

}  // namespace lathe::cuda
