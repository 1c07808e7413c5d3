#include "model/load/dummy_weights.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/float_formats.h"
#include "kernels/random_weights.h"

namespace lathe {
namespace {

// A table from 12 random bits to codes; converting each weight would take ten times as long.
template <class Code>
std::vector<Code> code_table(Code (*convert)(std::uint64_t)) {
  std::vector<Code> out;
  for (std::uint64_t bits = 0; bits < 1 << 16; bits += 16) out.push_back(convert(bits));
  return out;
}

// Fills [first, end), multiples of 4 except at the matrix's end, with 16 bits of a counter's hash
// per element.
void fill_elements(DType dtype, float reach, std::uint64_t seed, std::int64_t first,
                   std::int64_t end, std::byte* data) {
  static const std::vector<e4m3> codes = code_table(random_e4m3);
  static const std::vector<e2m1> mx_codes = code_table(random_e2m1);
  const auto each = [&](const auto& put) {
    for (std::int64_t i = first; i < end; i += 4) {
      std::uint64_t bits = random_weight_bits(seed, i);
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
    each([&](std::int64_t i, std::uint64_t bits) { to[i] = random_value(bits, reach); });
  } else {
    auto* to = reinterpret_cast<bf16*>(data);
    each([&](std::int64_t i, std::uint64_t bits) { to[i] = to_bf16(random_value(bits, reach)); });
  }
}

void fill_matrix(const TensorSpec& spec, DType dtype, std::uint64_t seed, ThreadPool* threads,
                 ModelWeights& weights) {
  const std::int64_t n = spec.shape[0] * spec.shape[1];
  std::byte* data = weights.take(bytes_of(dtype, n));
  const float reach = random_reach(spec.shape[1]);
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
    const std::int64_t count = weight_blocks(spec.shape[0]) * weight_blocks(spec.shape[1]);
    float* scales = weights.take_floats(count);
    std::fill_n(scales, count, random_e4m3_scale(spec.shape[1]));
    w.scales = scales;
  }
  if (dtype == DType::e2m1) {
    auto* scales = reinterpret_cast<ue8m0*>(weights.take(n / kMxBlock));
    std::fill_n(scales, n / kMxBlock, random_e2m1_scale(spec.shape[1]));
    w.mx_scales = scales;
  }
  spec.set(w);
}

// Sets a stack's experts, which are one after another in memory.
void cut(const WeightView& whole, WeightStack& stack) {
  stack.dtype = whole.dtype;
  for (std::int64_t i = 0; i < stack.count(); ++i) {
    stack.set(i, rows_of(whole, i * stack.rows, stack.rows));
  }
}

void fill_stack(const TensorSpec& spec, DType dtype, std::uint64_t seed, ThreadPool* threads,
                ModelWeights& weights) {
  WeightStack& stack = *spec.stack;
  TensorSpec all = spec;
  WeightView whole;
  all.stack = nullptr;
  all.matrix = &whole;
  all.shape = {stack.count() * stack.rows, stack.cols};
  fill_matrix(all, dtype, seed, threads, weights);
  cut(whole, stack);
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
    const std::uint64_t first = mixed_bits(seed + static_cast<std::uint64_t>(i / row));
    ids[i] = static_cast<std::int32_t>((first + static_cast<std::uint64_t>(i % row)) %
                                       static_cast<std::uint64_t>(spec.id_end));
  }
  *spec.ids = {ids, static_cast<std::size_t>(n)};
}

// Matrices and stacks that a device fills in its own memory. split_kv_b() reads kv_b on the host.
class DeviceWeights {
 public:
  DeviceWeights(Backend& backend, ModelWeights& weights) : backend_(backend), weights_(weights) {
    for (const LayerWeights& layer : weights.layers) on_host_.insert(&layer.mla.kv_b);
  }
  bool makes(const TensorSpec& spec) const {
    return spec.stack != nullptr || (spec.matrix != nullptr && !on_host_.contains(spec.matrix));
  }
  /// A stack's matrices are all made when its last one is added.
  Result<void> add(const TensorSpec& spec, DType dtype, std::uint64_t seed) {
    WeightStack* const stack = spec.stack;
    if (stack == nullptr || spec.joined || spec.whole_stack) {
      const std::int64_t rows = spec.whole_stack ? stack->count() * stack->rows : spec.shape[0];
      const std::int64_t cols = spec.whole_stack ? stack->cols : spec.shape[1];
      const auto made = make(spec, {dtype, rows, cols, std::span(&seed, 1)});
      if (!made) return made.error();
      if (spec.whole_stack) {
        cut(made->at(0), *stack);
      } else {
        spec.set(made->at(0));
      }
      return {};
    }
    Seeds& seeds = seeds_[stack];
    seeds.of.resize(static_cast<std::size_t>(stack->count()));
    seeds.of[static_cast<std::size_t>(spec.place)] = seed;
    if (++seeds.known < stack->count()) return {};
    auto made = make(spec, {dtype, spec.shape[0], spec.shape[1], seeds.of});
    if (!made) return made.error();
    *stack = std::move(*made);
    return {};
  }

 private:
  Result<WeightStack> make(const TensorSpec& spec, const RandomWeights& random) {
    auto made = backend_.random_weights(random, weights_.prepared);
    if (!made) return made.error();
    weights_.bytes += made->bytes();
    weights_.on_device.insert(spec.stack != nullptr ? static_cast<const void*>(spec.stack)
                                                    : spec.matrix);
    return made;
  }

  struct Seeds {
    std::vector<std::uint64_t> of;  // [matrices]
    std::int64_t known = 0;
  };
  Backend& backend_;
  ModelWeights& weights_;
  std::unordered_set<const WeightView*> on_host_;
  std::unordered_map<const WeightStack*, Seeds> seeds_;
};

}  // namespace

Result<void> fill_dummy(const ModelConfig& config, const LoadOptions& options,
                        const std::vector<TensorSpec>& table, ModelWeights& weights) {
  std::optional<DeviceWeights> device;
  if (options.backend != nullptr && options.backend->memory().kind == MemoryKind::device) {
    device.emplace(*options.backend, weights);
  }
  std::int64_t total = 0, done = 0;
  for (const TensorSpec& spec : table) total += dummy_bytes(config, spec);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const TensorSpec& spec = table[i];
    const std::uint64_t seed = mixed_bits(options.seed) + (std::uint64_t{i} << 40);
    if (spec.vector != nullptr) {
      fill_vector(spec, weights);
    } else if (spec.ids != nullptr) {
      fill_ids(spec, seed, weights);
    } else if (device && device->makes(spec)) {
      if (auto ok = device->add(spec, dummy_dtype(config, spec), seed); !ok) return ok;
    } else if (spec.whole_stack) {
      fill_stack(spec, dummy_dtype(config, spec), seed, options.threads, weights);
    } else {
      fill_matrix(spec, dummy_dtype(config, spec), seed, options.threads, weights);
    }
    done += dummy_bytes(config, spec);
    if (options.on_progress) options.on_progress(done, total);
  }
  return {};
}

}  // namespace lathe
