#include "model/dummy_weights.h"

#include <algorithm>
#include <cmath>

#include "base/float_formats.h"

namespace lathe {
namespace {

std::int64_t blocks(std::int64_t n) { return (n + kWeightBlock - 1) / kWeightBlock; }

// splitmix64 of a counter, so that any thread can make any part.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Maps 16 random bits to a uniform value between -reach and reach.
float uniform(std::uint64_t bits, float reach) {
  return static_cast<float>(static_cast<std::int16_t>(bits)) * (reach * 0x1p-15f);
}

// A table from 12 random bits to codes; converting each weight would take ten times as long.
template <class Code>
std::vector<Code> code_table(float reach, Code (*convert)(float)) {
  std::vector<Code> out;
  for (std::uint64_t bits = 0; bits < 1 << 16; bits += 16) {
    out.push_back(convert(uniform(bits, reach)));
  }
  return out;
}

constexpr float kCodeReach = 384;  // of e4m3's 448
constexpr float kMxReach = 6;

// [first, end), multiples of 4 but for the matrix's last: 16 bits of a counter's hash for each.
void fill_elements(DType dtype, float reach, std::uint64_t seed, std::int64_t first,
                   std::int64_t end, std::byte* data) {
  static const std::vector<e4m3> codes = code_table(kCodeReach, to_e4m3);
  static const std::vector<e2m1> mx_codes = code_table(kMxReach, to_e2m1);
  const auto each = [&](const auto& put) {
    for (std::int64_t i = first; i < end; i += 4) {
      std::uint64_t bits = mixed(seed + static_cast<std::uint64_t>(i));
      for (std::int64_t k = i; k < std::min(i + 4, end); ++k, bits >>= 16) put(k, bits & 0xffff);
    }
  };
  if (dtype == DType::e4m3) {
    auto* to = reinterpret_cast<e4m3*>(data);
    each([&](std::int64_t i, std::uint64_t bits) { to[i] = codes[bits >> 4]; });
  } else if (dtype == DType::e2m1) {
    each([&](std::int64_t i, std::uint64_t bits) {
      const auto code = static_cast<std::byte>(mx_codes[bits >> 4].bits);
      data[i / 2] = i % 2 == 0 ? code : data[i / 2] | code << 4;
    });
  } else if (dtype == DType::f32) {
    auto* to = reinterpret_cast<float*>(data);
    each([&](std::int64_t i, std::uint64_t bits) { to[i] = uniform(bits, reach); });
  } else {
    auto* to = reinterpret_cast<bf16*>(data);
    each([&](std::int64_t i, std::uint64_t bits) { to[i] = to_bf16(uniform(bits, reach)); });
  }
}

// Uniform with variance 1 / cols, as in freshly initialised layers; e4m3 and e2m1 codes have one
// scale.
void fill_matrix(const TensorSpec& spec, DType dtype, std::uint64_t seed, ThreadPool* threads,
                 ModelWeights& weights) {
  const std::int64_t n = spec.shape[0] * spec.shape[1];
  std::byte* data = weights.take(bytes_of(dtype, n));
  const float reach = std::sqrt(3.0f / static_cast<float>(spec.shape[1]));
  constexpr std::int64_t kChunk = 1 << 20;
  auto fill = [&](std::int64_t task, int) {
    fill_elements(dtype, reach, seed, task * kChunk, std::min(n, (task + 1) * kChunk), data);
  };
  const std::int64_t tasks = (n + kChunk - 1) / kChunk;
  if (threads != nullptr) {
    threads->run(tasks, fill);
  } else {
    for (std::int64_t t = 0; t < tasks; ++t) fill(t, 0);
  }
  WeightView w{data, dtype, spec.shape[0], spec.shape[1], nullptr};
  if (dtype == DType::e4m3) {
    const std::int64_t count = blocks(spec.shape[0]) * blocks(spec.shape[1]);
    float* scales = weights.take_floats(count);
    std::fill_n(scales, count, reach / kCodeReach);
    w.scales = scales;
  }
  if (dtype == DType::e2m1) {
    auto* scales = reinterpret_cast<ue8m0*>(weights.take(n / kMxBlock));
    std::fill_n(scales, n / kMxBlock, to_ue8m0_ceil(reach / kMxReach));
    w.mx_scales = scales;
  }
  spec.set(w);
}

// Fills the experts of a stack one after another.
void fill_stack(const TensorSpec& spec, DType dtype, std::uint64_t seed, ThreadPool* threads,
                ModelWeights& weights) {
  WeightStack& stack = *spec.stack;
  TensorSpec all = spec;
  WeightView whole;
  all.stack = nullptr;
  all.matrix = &whole;
  all.shape = {stack.count() * stack.rows, stack.cols};
  fill_matrix(all, dtype, seed, threads, weights);
  stack.dtype = dtype;
  const std::int64_t n = stack.rows * stack.cols;
  for (std::int64_t i = 0; i < stack.count(); ++i) {
    stack.set(i, {whole.data + bytes_of(dtype, i * n), dtype, stack.rows, stack.cols, nullptr,
                  whole.mx_scales == nullptr ? nullptr : whole.mx_scales + i * n / kMxBlock});
  }
}

void fill_vector(const TensorSpec& spec, ModelWeights& weights) {
  const bool one = spec.name.ends_with("weight");  // norms, not biases or sinks
  const std::int64_t n = spec.elements();
  float* values = weights.take_floats(n);
  std::fill_n(values, n, one ? 1.0f : 0.0f);
  *spec.vector = {values, static_cast<std::size_t>(n)};
}

void fill_ids(const TensorSpec& spec, std::uint64_t seed, ModelWeights& weights) {
  const std::int64_t n = spec.elements();
  auto* ids = reinterpret_cast<std::int32_t*>(weights.take(4 * n));
  // A row's ids are distinct: no expert is listed twice.
  const std::int64_t row = spec.shape[1];
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t first = mixed(seed + static_cast<std::uint64_t>(i / row));
    ids[i] = static_cast<std::int32_t>((first + static_cast<std::uint64_t>(i % row)) %
                                       static_cast<std::uint64_t>(spec.id_end));
  }
  *spec.ids = {ids, static_cast<std::size_t>(n)};
}

}  // namespace

void fill_dummy(const ModelConfig& config, const LoadOptions& options,
                const std::vector<TensorSpec>& table, ModelWeights& weights) {
  std::int64_t total = 0, done = 0;
  for (const TensorSpec& spec : table) total += dummy_bytes(config, spec);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const TensorSpec& spec = table[i];
    const std::uint64_t seed = mixed(options.seed) + (std::uint64_t{i} << 40);
    if (spec.vector != nullptr) {
      fill_vector(spec, weights);
    } else if (spec.ids != nullptr) {
      fill_ids(spec, seed, weights);
    } else if (spec.whole_stack) {
      fill_stack(spec, dummy_dtype(config, spec), seed, options.threads, weights);
    } else {
      fill_matrix(spec, dummy_dtype(config, spec), seed, options.threads, weights);
    }
    done += dummy_bytes(config, spec);
    if (options.on_progress) options.on_progress(done, total);
  }
}

}  // namespace lathe
