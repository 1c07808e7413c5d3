#include "model/load/dummy_weights.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/float_formats.h"
#include "kernels/announced_source.h"
#include "kernels/random_weights.h"
#include "model/load/prepared_bytes.h"

namespace lathe {
namespace {

// A table from 12 random bits to codes; converting each weight would take ten times as long.
template <class Code>
std::vector<Code> code_table(Code (*convert)(std::uint64_t)) {
  std::vector<Code> out;
  for (std::uint64_t bits = 0; bits < 1 << 16; bits += 16) out.push_back(convert(bits));
  return out;
}

// Fills elements [first, end) of a matrix from 16 bits of a counter's hash per element; element
// `first` is element `at` of `data`. Both are even for e2m1 and u4.
void fill_elements(DType dtype, float reach, std::uint64_t seed, std::int64_t first,
                   std::int64_t end, std::int64_t at, std::byte* data) {
  static const std::vector<e4m3> codes = code_table(random_e4m3);
  static const std::vector<e2m1> mx_codes = code_table(random_e2m1);
  const auto each = [&](const auto& put) {
    for (std::int64_t i = first / 4 * 4; i < end; i += 4) {
      std::uint64_t bits = random_weight_bits(seed, i);
      for (std::int64_t k = i; k < std::min(i + 4, end); ++k, bits >>= 16) {
        if (k >= first) put(k - first + at, bits & 0xffff);
      }
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
  } else if (dtype == DType::u4) {
    each([&](std::int64_t i, std::uint64_t bits) {
      const auto code = static_cast<std::byte>(random_u4(bits));
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

// Rows of a part of several matrices of one shape, one after another.
struct PartRows {
  TensorPart part;
  std::int64_t rows = 0, cols = 0;  // of each whole matrix

  std::int64_t count() const { return part.matrices.count * part.rows.count; }
  // Index in all the matrices' elements of the first one of the part's row i.
  std::int64_t first_of(std::int64_t i) const {
    const std::int64_t matrix = part.matrices.first + i / part.rows.count;
    return (matrix * rows + part.rows.first + i % part.rows.count) * cols + part.cols.first;
  }
};

// Sizes of groups, and whether they have zeros.
struct DummyGroups {
  std::int32_t size = 0;  // 0: none
  bool zeros = false;
  bool widened = false;  // the values of int4 codes in f32
};
DummyGroups groups_of(const ModelConfig& config, const TensorSpec& spec, DType dtype) {
  if (dummy_is_widened(config, spec)) return {0, false, true};
  if (dtype == DType::u4) return {config.int4_group, config.int4_zeros};
  const bool nvfp4 = dtype == DType::e2m1 && has_nvfp4(config);
  return {nvfp4 ? static_cast<std::int32_t>(kNvBlock) : 0, false};
}

void add_groups(WeightView& w, std::int64_t all_cols, const DummyGroups& groups,
                ModelWeights& weights) {
  const std::int64_t count = w.rows * w.cols / groups.size;
  const bool u4 = w.dtype == DType::u4;
  std::byte* scales = weights.take(count * (u4 ? 2 : 1));
  if (u4) {
    std::fill_n(reinterpret_cast<bf16*>(scales), count, random_u4_scale(all_cols));
  } else {
    std::fill_n(reinterpret_cast<e4m3*>(scales), count, to_e4m3(1.f));
    float* factor = weights.take_floats(1);
    *factor = random_nvfp4_factor(all_cols);
    w.scales = factor;
  }
  w.groups = {scales, u4 ? DType::bf16 : DType::e4m3, groups.size, nullptr};
  if (groups.zeros) {
    auto* zeros = reinterpret_cast<std::uint8_t*>(weights.take(count));
    std::fill_n(zeros, count, kU4Zero);
    w.groups.zeros = zeros;
  }
}

// Fills n values of int4 codes, from element `first` of a tensor whose rows have all_cols columns.
void fill_widened(std::int64_t all_cols, std::uint64_t seed, std::int64_t first, std::int64_t n,
                  float* to) {
  std::vector<std::byte> codes(static_cast<std::size_t>(n + 1) / 2);
  fill_elements(DType::u4, 0, seed, first, first + n, 0, codes.data());
  const float scale = to_f32(random_u4_scale(all_cols));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto two = std::to_integer<int>(codes[static_cast<std::size_t>(i / 2)]);
    to[i] = static_cast<float>((i % 2 == 0 ? two & 15 : two >> 4) - kU4Zero) * scale;
  }
}

// Fills the part of matrices that are one after another in their tensor, and returns it with its
// matrices joined by rows. Bits follow an element's index in the whole tensor.
WeightView fill_part(const PartRows& of, DType dtype, const DummyGroups& groups, std::uint64_t seed,
                     ThreadPool* threads, ModelWeights& weights) {
  const std::int64_t rows = of.count(), cols = of.part.cols.count, n = rows * cols;
  std::byte* data = weights.take(bytes_of(dtype, n));
  const float reach = random_reach(of.cols);
  constexpr std::int64_t kChunk = 1 << 20;
  const std::int64_t each = std::max<std::int64_t>(1, kChunk / std::max<std::int64_t>(1, cols));
  for_each(threads, (rows + each - 1) / each, [&](std::int64_t task) {
    for (std::int64_t r = task * each; r < std::min(rows, (task + 1) * each); ++r) {
      const std::int64_t first = of.first_of(r);
      if (groups.widened) {
        fill_widened(of.cols, seed, first, cols, reinterpret_cast<float*>(data) + r * cols);
      } else {
        fill_elements(dtype, reach, seed, first, first + cols, r * cols, data);
      }
    }
  });
  WeightView w{data, dtype, rows, cols, nullptr};
  if (dtype == DType::e4m3) {
    const std::int64_t count = weight_blocks(rows) * weight_blocks(cols);
    float* scales = weights.take_floats(count);
    std::fill_n(scales, count, random_e4m3_scale(of.cols));
    w.scales = scales;
  }
  if (groups.size > 0) {
    add_groups(w, of.cols, groups, weights);
  } else if (dtype == DType::e2m1) {
    auto* scales = reinterpret_cast<ue8m0*>(weights.take(n / kMxBlock));
    std::fill_n(scales, n / kMxBlock, random_e2m1_scale(of.cols));
    w.mx_scales = scales;
  }
  return w;
}

void fill_matrix(const TensorSpec& spec, DType dtype, const DummyGroups& groups, std::uint64_t seed,
                 ThreadPool* threads, ModelWeights& weights) {
  if (spec.place < 0) return;
  spec.set(
      fill_part({spec.part, spec.shape[0], spec.shape[1]}, dtype, groups, seed, threads, weights));
}

// Sets a stack's experts, which are one after another in memory.
void cut(const WeightView& whole, WeightStack& stack) {
  stack.dtype = whole.dtype;
  for (std::int64_t i = 0; i < stack.count(); ++i) {
    stack.set(i, rows_of(whole, i * stack.rows, stack.rows));
  }
}

void fill_stack(const TensorSpec& spec, DType dtype, const DummyGroups& groups, std::uint64_t seed,
                ThreadPool* threads, ModelWeights& weights) {
  const PartRows of{spec.part, spec.shape[2], spec.shape[1]};
  cut(fill_part(of, dtype, groups, seed, threads, weights), *spec.stack);
}

void fill_vector(const TensorSpec& spec, ModelWeights& weights) {
  const bool norm = spec.name.ends_with("weight");  // norms, not biases or sinks
  const std::int64_t n = spec.part.elements();
  float* values = weights.take_floats(n);
  std::fill_n(values, n, spec.ones ? spec.factor : norm ? 1.0f : 0.0f);
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
  /// Memory that add() needs for the tensor; a stack's is all of its first one's.
  std::int64_t bytes_of_tensor(const TensorSpec& spec, DType dtype,
                               const DummyGroups& groups) const {
    if (!makes(spec) || spec.place < 0) return 0;
    const bool stack = spec.stack != nullptr && !spec.joined;
    if (stack && !spec.whole_stack && spec.place > 0) return 0;
    static constexpr float kScale = 0;  // of weights that have scales
    static constexpr ue8m0 kMxScale{};
    static constexpr std::byte kCode{};
    WeightView w{&kCode, dtype, spec.part.rows.count, spec.part.cols.count};
    if (dtype == DType::e4m3 || (dtype == DType::e2m1 && groups.size > 0)) w.scales = &kScale;
    if (dtype == DType::e2m1 && groups.size == 0) w.mx_scales = &kMxScale;
    if (groups.size > 0) {
      w.groups = {&kCode, dtype == DType::u4 ? DType::bf16 : DType::e4m3, groups.size, nullptr};
      if (groups.zeros) w.groups.zeros = reinterpret_cast<const std::uint8_t*>(&kCode);
    }
    return prepared_bytes(w, stack ? spec.stack->count() : 1);
  }
  /// A stack's matrices are all made when its last one is added.
  Result<void> add(const TensorSpec& spec, DType dtype, const DummyGroups& groups,
                   std::uint64_t seed) {
    if (spec.place < 0) return {};
    if (spec.whole_stack) return add_whole_stack(spec, dtype, groups, seed);
    WeightStack* const stack = spec.stack;
    Seeds seeds;
    if (stack != nullptr && !spec.joined) {
      Seeds& all = seeds_[stack];
      all.of.resize(static_cast<std::size_t>(stack->count()));
      all.of[static_cast<std::size_t>(spec.place)] = seed;
      if (++all.known < stack->count()) return {};
      seeds = all;
    } else {
      seeds.of = {seed};
    }
    const PartRows of{spec.part, spec.shape[0], spec.shape[1]};
    auto made =
        make(spec, of, dtype, groups, seeds.of, std::vector(seeds.of.size(), of.first_of(0)));
    if (!made) return made.error();
    if (stack != nullptr && !spec.joined) {
      *stack = std::move(*made);
    } else {
      spec.set(made->at(0));
    }
    return {};
  }

 private:
  Result<void> add_whole_stack(const TensorSpec& spec, DType dtype, const DummyGroups& groups,
                               std::uint64_t seed) {
    const PartRows of{spec.part, spec.shape[2], spec.shape[1]};
    const std::int64_t count = of.part.matrices.count;
    std::vector<std::int64_t> first;
    for (std::int64_t i = 0; i < count; ++i) first.push_back(of.first_of(i * of.part.rows.count));
    const std::vector seeds(static_cast<std::size_t>(count), seed);
    auto made = make(spec, of, dtype, groups, seeds, first);
    if (!made) return made.error();
    *spec.stack = std::move(*made);
    return {};
  }
  // first: [seeds] indices of the matrices' first elements.
  Result<WeightStack> make(const TensorSpec& spec, const PartRows& of, DType dtype,
                           const DummyGroups& groups, std::span<const std::uint64_t> seeds,
                           std::span<const std::int64_t> first) {
    auto made = backend_.random_weights({.dtype = dtype,
                                         .rows = of.part.rows.count,
                                         .cols = of.part.cols.count,
                                         .seeds = seeds,
                                         .first = first,
                                         .whole_cols = of.cols,
                                         .group = groups.size,
                                         .zeros = groups.zeros},
                                        weights_.prepared);
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
  std::int64_t total = 0, done = 0, on_device = 0;
  for (const TensorSpec& spec : table) {
    total += dummy_bytes(config, spec);
    const DType dtype = dummy_dtype(config, spec);
    if (device) on_device += device->bytes_of_tensor(spec, dtype, groups_of(config, spec, dtype));
  }
  const AnnouncedSource announced(nullptr, on_device);
  if (device) options.backend->begin_prepare(announced);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const TensorSpec& spec = table[i];
    const std::uint64_t seed = mixed_bits(options.seed) + (std::uint64_t{i} << 40);
    const DType dtype = dummy_dtype(config, spec);
    const DummyGroups groups = groups_of(config, spec, dtype);
    if (spec.vector != nullptr) {
      fill_vector(spec, weights);
    } else if (spec.ids != nullptr) {
      fill_ids(spec, seed, weights);
    } else if (device && device->makes(spec)) {
      if (auto ok = device->add(spec, dtype, groups, seed); !ok) return ok;
    } else if (spec.whole_stack) {
      fill_stack(spec, dtype, groups, seed, options.threads, weights);
    } else {
      fill_matrix(spec, dtype, groups, seed, options.threads, weights);
    }
    done += dummy_bytes(config, spec);
    if (options.on_progress) options.on_progress(done, total);
  }
  return device ? options.backend->end_prepare() : Result<void>();
}

}  // namespace lathe
