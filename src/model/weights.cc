#include "model/weights.h"

#include <sys/mman.h>

#include <cstring>
#include <functional>

#include "kernels/ref/linear.h"

namespace lathe {
namespace {

// dst[c, r] = src[r, c] of elements of `size` bytes.
void transpose(const std::byte* src, std::int64_t rows, std::int64_t cols, std::int64_t size,
               std::byte* dst) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      std::memcpy(dst + (c * rows + r) * size, src + (r * cols + c) * size,
                  static_cast<std::size_t>(size));
    }
  }
}

void for_each(ThreadPool* threads, std::int64_t tasks,
              const std::function<void(std::int64_t)>& body) {
  if (threads != nullptr) return threads->run(tasks, [&](std::int64_t t, int) { body(t); });
  for (std::int64_t t = 0; t < tasks; ++t) body(t);
}

void split_layer(const AttentionProblem& p, ThreadPool* threads, MlaWeights& mla,
                 ModelWeights& weights) {
  const std::int64_t heads = p.heads, nope = p.nope, qk = p.qk_nope_head, v = p.v_head;
  const WeightView& kv_b = mla.kv_b;
  mla.w_uk.resize(static_cast<std::size_t>(heads * qk * nope));
  mla.w_uv.resize(static_cast<std::size_t>(heads * v * nope));
  // Heads of whole blocks keep their codes: a block that is turned keeps its scale.
  const bool fp8 = kv_b.dtype == DType::e4m3;
  const bool widen = fp8 && (qk % kWeightBlock != 0 || v % kWeightBlock != 0);
  const DType dtype = widen ? DType::f32 : kv_b.dtype;
  const std::int64_t size = bytes_of(dtype, 1);
  std::byte* uk = weights.take(heads * qk * nope * size);
  const bool scaled = fp8 && !widen && kv_b.scales != nullptr;
  const std::int64_t latent_blocks = (nope + kWeightBlock - 1) / kWeightBlock;
  const std::int64_t qk_blocks = qk / kWeightBlock;
  const std::int64_t head_scales = scaled ? latent_blocks * qk_blocks : 0;
  auto* uk_scales = reinterpret_cast<float*>(
      weights.take(heads * head_scales * static_cast<std::int64_t>(sizeof(float))));
  mla.uk.resize(static_cast<std::size_t>(heads));
  mla.uv.resize(static_cast<std::size_t>(heads));
  for_each(threads, heads, [&](std::int64_t h) {
    const std::int64_t first = h * (qk + v);  // row of kv_b
    float* w_uk = mla.w_uk.data() + h * qk * nope;
    float* w_uv = mla.w_uv.data() + h * v * nope;
    for (std::int64_t r = 0; r < qk + v; ++r) {
      float* to = r < qk ? w_uk + r * nope : w_uv + (r - qk) * nope;
      for (std::int64_t c = 0; c < nope; ++c) {
        to[c] = static_cast<float>(weight_at(kv_b, first + r, c));
      }
    }
    const auto* k_rows = widen ? reinterpret_cast<const std::byte*>(w_uk)
                               : kv_b.data + bytes_of(dtype, first * nope);
    const auto* v_rows = widen ? reinterpret_cast<const std::byte*>(w_uv)
                               : kv_b.data + bytes_of(dtype, (first + qk) * nope);
    std::byte* turned = uk + h * qk * nope * size;
    transpose(k_rows, qk, nope, size, turned);
    const auto at = static_cast<std::size_t>(h);
    mla.uk[at] = {turned, dtype, nope, qk, nullptr};
    mla.uv[at] = {v_rows, dtype, v, nope, nullptr};
    if (!scaled) return;
    float* turned_scales = uk_scales + h * head_scales;
    for (std::int64_t i = 0; i < latent_blocks; ++i) {
      for (std::int64_t j = 0; j < qk_blocks; ++j) {
        turned_scales[i * qk_blocks + j] =
            kv_b.scales[(first / kWeightBlock + j) * latent_blocks + i];
      }
    }
    mla.uk[at].scales = turned_scales;
    mla.uv[at].scales = kv_b.scales + (first + qk) / kWeightBlock * latent_blocks;
  });
  weights.bytes += static_cast<std::int64_t>((mla.w_uk.size() + mla.w_uv.size()) * sizeof(float));
}

}  // namespace

ModelWeights::ModelWeights(const ModelConfig& config)
    : layers(static_cast<std::size_t>(config.layers)) {}

std::byte* ModelWeights::take(std::int64_t n) {
  // Huge pages: a product that streams weights would look up a page every 4 KiB of each run.
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const auto size = static_cast<std::size_t>(n);
  const std::align_val_t align{size < kHugePage ? 64 : kHugePage};
  owned.emplace_back(static_cast<std::byte*>(::operator new[](size, align)), Free{align});
  if (size >= kHugePage) {
    // Only a hint: what the system refuses lies on small pages.
    static_cast<void>(::madvise(owned.back().get(), size / kHugePage * kHugePage, MADV_HUGEPAGE));
  }
  bytes += n;
  return owned.back().get();
}

void split_kv_b(const ModelConfig& config, ThreadPool* threads, ModelWeights& weights) {
  if (!config.latent()) return;
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    split_layer(config.attention(static_cast<std::int32_t>(l)), threads, weights.layers[l].mla,
                weights);
  }
}

std::int64_t decode_bytes(const ModelConfig& config, const ModelWeights& weights) {
  std::int64_t sum = weights.head.bytes();
  const auto add = [&](const FfnWeights& f) {
    sum += f.gate.bytes() + f.up.bytes() + f.down.bytes();
  };
  for (const LayerWeights& layer : weights.layers) {
    const GqaWeights& g = layer.gqa;
    sum += g.q.bytes() + g.k.bytes() + g.v.bytes() + g.out.bytes();
    const MlaWeights& m = layer.mla;
    sum += m.q_a.bytes() + m.q_b.bytes() + m.kv_a.bytes() + m.out.bytes();
    for (const WeightView& head : m.uk) sum += head.bytes();
    for (const WeightView& head : m.uv) sum += head.bytes();
    const IndexerWeights& x = layer.indexer;
    sum += x.q.bytes() + x.k.bytes() + x.weights.bytes();
    add(layer.ffn);
    add(layer.moe.shared);
    sum += layer.moe.router.bytes();
    if (layer.moe.experts.empty()) continue;
    const ExpertWeights& e = layer.moe.experts.front();
    sum += config.moe.top_k * (e.gate.bytes() + e.up.bytes() + e.down.bytes());
  }
  return sum;
}

}  // namespace lathe
