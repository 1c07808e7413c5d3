#include "model/weights/weights.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/ref/linear.h"

namespace lathe {
namespace {

void split_layer(const AttentionProblem& p, bool expansion, ThreadPool* threads, MlaWeights& mla,
                 ModelWeights& weights) {
  const std::int64_t heads = p.heads, nope = p.nope, qk = p.qk_nope_head, v = p.v_head;
  const WeightView& kv_b = mla.kv_b;
  // Heads of whole blocks keep their codes, since a transposed block keeps its scale.
  const bool fp8 = kv_b.dtype == DType::e4m3;
  const bool widen = fp8 && (qk % kWeightBlock != 0 || v % kWeightBlock != 0);
  const DType dtype = widen ? DType::f32 : kv_b.dtype;
  const std::int64_t size = bytes_of(dtype, 1);
  float* w_uk = nullptr;  // [heads, qk, nope]
  float* w_uv = nullptr;  // [heads, v, nope]
  if (expansion) w_uk = weights.take_floats(heads * qk * nope);
  if (expansion || widen) w_uv = weights.take_floats(heads * v * nope);
  if (expansion) {
    mla.w_uk = {w_uk, static_cast<std::size_t>(heads * qk * nope)};
    mla.w_uv = {w_uv, static_cast<std::size_t>(heads * v * nope)};
  }
  std::byte* uk = weights.take(heads * qk * nope * size);
  const bool scaled = fp8 && !widen && kv_b.scales != nullptr;
  const std::int64_t latent_blocks = (nope + kWeightBlock - 1) / kWeightBlock;
  const std::int64_t qk_blocks = qk / kWeightBlock;
  const std::int64_t head_scales = scaled ? latent_blocks * qk_blocks : 0;
  float* uk_scales = weights.take_floats(heads * head_scales);
  mla.uk = WeightStack::of(heads, dtype, nope, qk);
  mla.uv = WeightStack::of(heads, dtype, v, nope);
  for_each(threads, heads, [&](std::int64_t h) {
    const std::int64_t first = h * (qk + v);  // row of kv_b
    // Keys that only their transposition reads in f32.
    std::vector<float> passing(static_cast<std::size_t>(widen && !expansion ? qk * nope : 0));
    float* const wide_k = expansion ? w_uk + h * qk * nope : passing.data();
    for (std::int64_t r = 0; w_uv != nullptr && r < qk + v; ++r) {
      float* to = r < qk ? wide_k + r * nope : w_uv + (h * v + r - qk) * nope;
      for (std::int64_t c = 0; c < nope; ++c) {
        to[c] = static_cast<float>(weight_at(kv_b, first + r, c));
      }
    }
    const auto* k_rows = widen ? reinterpret_cast<const std::byte*>(wide_k)
                               : kv_b.data + bytes_of(dtype, first * nope);
    const auto* v_rows = widen ? reinterpret_cast<const std::byte*>(w_uv + h * v * nope)
                               : kv_b.data + bytes_of(dtype, (first + qk) * nope);
    std::byte* turned = uk + h * qk * nope * size;
    transpose(k_rows, qk, nope, size, turned);
    float* turned_scales = scaled ? uk_scales + h * head_scales : nullptr;
    for (std::int64_t i = 0; scaled && i < latent_blocks; ++i) {
      for (std::int64_t j = 0; j < qk_blocks; ++j) {
        turned_scales[i * qk_blocks + j] =
            kv_b.scales[(first / kWeightBlock + j) * latent_blocks + i];
      }
    }
    const float* v_scales =
        scaled ? kv_b.scales + (first + qk) / kWeightBlock * latent_blocks : nullptr;
    mla.uk.set(h, {turned, dtype, nope, qk, turned_scales});
    mla.uv.set(h, {v_rows, dtype, v, nope, v_scales});
  });
}

}  // namespace

WeightView rows_of(const WeightView& w, std::int64_t first, std::int64_t rows) {
  WeightView out = w;
  out.rows = rows;
  out.data += bytes_of(w.dtype, first * w.cols);
  if (w.scales != nullptr && w.dtype == DType::e4m3) {
    out.scales += w.scale_rows ? first : first / kWeightBlock * weight_blocks(w.cols);
  }
  out.groups = w.groups.row(first, w.cols);
  if (w.mx_scales != nullptr) out.mx_scales += first * (w.cols / kMxBlock);
  return out;
}

void transpose(const std::byte* src, std::int64_t rows, std::int64_t cols, std::int64_t size,
               std::byte* dst) {
  constexpr std::int64_t kTile = 32;  // square tiles; their cache lines fit in L1
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (std::int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (std::int64_t c = c0; c < std::min(c0 + kTile, cols); ++c) {
        for (std::int64_t r = r0; r < std::min(r0 + kTile, rows); ++r) {
          std::memcpy(dst + (c * rows + r) * size, src + (r * cols + c) * size,
                      static_cast<std::size_t>(size));
        }
      }
    }
  }
}

void for_each(ThreadPool* threads, std::int64_t tasks,
              const std::function<void(std::int64_t)>& body) {
  if (threads != nullptr) return threads->run(tasks, [&](std::int64_t t, int) { body(t); });
  for (std::int64_t t = 0; t < tasks; ++t) body(t);
}

ModelWeights::ModelWeights(const ModelConfig& config)
    : layers(static_cast<std::size_t>(config.cached_layers())) {}

std::byte* ModelWeights::take(std::int64_t n) {
  // Huge pages avoid a TLB miss for every 4 KiB of streamed weights.
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const auto size = static_cast<std::size_t>(n);
  const std::align_val_t align{size < kHugePage ? 64 : kHugePage};
  auto* data = static_cast<std::byte*>(::operator new[](size, align, std::nothrow));
  if (data == nullptr) {
    throw OutOfMemory({ErrorCode::exhausted, "weights", fmt::format("{} bytes more", n),
                       "less: " + host_memory_text(), ""});
  }
  owned.emplace_back(data, Free{align});
  if (size >= kHugePage) {
    // Only a hint: if the system declines, memory stays on small pages.
    static_cast<void>(::madvise(owned.back().get(), size / kHugePage * kHugePage, MADV_HUGEPAGE));
  }
  bytes += n;
  return owned.back().get();
}

void join_convolutions(ModelWeights& weights) {
  for (LayerWeights& layer : weights.layers) {
    DeltaWeights& d = layer.delta;
    const std::size_t n = d.q_conv.size() + d.k_conv.size() + d.v_conv.size();
    if (n == 0) continue;
    float* to = weights.take_floats(static_cast<std::int64_t>(n));
    d.conv = {to, n};
    for (const Vector& part : {d.q_conv, d.k_conv, d.v_conv}) {
      to = std::ranges::copy(part, to).out;
    }
  }
}

void split_kv_b(const ModelConfig& config, bool expansion, ThreadPool* threads,
                ModelWeights& weights) {
  if (!config.is_mla()) return;
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    if (config.is_delta(static_cast<std::int32_t>(l))) continue;
    split_layer(config.attention(static_cast<std::int32_t>(l)), expansion, threads,
                weights.layers[l].mla, weights);
  }
}

StepWeights step_weights(const ModelConfig& config, const ModelWeights& weights,
                         std::int64_t rows) {
  StepWeights out;
  out.bytes = static_cast<double>(weights.head.bytes());
  out.logit_products = static_cast<double>(weights.head.rows * weights.head.cols);
  const auto count = [&](DType dtype, double bytes, double products) {
    out.bytes += bytes;
    out.products += products;
    if (dtype == DType::e4m3) out.e4m3_products += products;
  };
  const auto add = [&](const WeightView& w) {
    count(w.dtype, static_cast<double>(w.bytes()), static_cast<double>(w.rows * w.cols));
  };
  const auto add_stack = [&](const WeightStack& w, double read, double chosen) {
    const double size = static_cast<double>(w.rows * w.cols);
    const double all = static_cast<double>(std::max<std::int64_t>(1, w.count()));
    count(w.dtype, static_cast<double>(w.bytes()) / all * read, size * chosen);
  };
  const auto add_all = [&](const WeightStack& w) {
    add_stack(w, static_cast<double>(w.count()), static_cast<double>(w.count()));
  };
  for (const LayerWeights& layer :
       std::span(weights.layers).first(static_cast<std::size_t>(config.layers))) {
    const GqaWeights& g = layer.gqa;
    for (const WeightView* w : {&g.q, &g.k, &g.v, &g.out}) add(*w);
    const DeltaWeights& d = layer.delta;
    for (const WeightView* w : {&d.q, &d.k, &d.v, &d.gate, &d.beta, &d.decay, &d.gate_down,
                                &d.decay_down, &d.qkvz, &d.ba, &d.out}) {
      add(*w);
    }
    const MlaWeights& m = layer.mla;
    for (const WeightView* w : {&m.q_a, &m.q_b, &m.kv_a, &m.gate, &m.out}) add(*w);
    add_all(m.uk);
    add_all(m.uv);
    const CompressedWeights& c = layer.compressed;
    for (const WeightView* w : {&c.q_a, &c.q_b, &c.kv, &c.out_b}) add(*w);
    add_all(c.out_a);
    const IndexerWeights& x = layer.indexer;
    for (const WeightView* w : {&x.q, &x.k, &x.weights}) add(*w);
    for (const CompressorWeights* w : {&c.compressor, &x.compressor}) {
      add(w->kv);
      add(w->gate);
    }
    add(layer.attention_hyper.fn);
    add(layer.ffn_hyper.fn);
    for (const FfnWeights* f : {&layer.ffn, &layer.moe.shared}) {
      for (const WeightView* w : {&f->gate, &f->up, &f->down}) add(*w);
    }
    add(layer.moe.router);
    const ExpertStacks& e = layer.moe.experts;
    const double experts = static_cast<double>(e.gate.count());
    if (experts == 0) continue;
    const double chosen = config.moe.top_k;
    const double read = experts * (1 - std::pow(1 - chosen / experts, static_cast<double>(rows)));
    for (const WeightStack* w : {&e.gate, &e.up, &e.down}) add_stack(*w, read, chosen);
  }
  return out;
}

}  // namespace lathe
