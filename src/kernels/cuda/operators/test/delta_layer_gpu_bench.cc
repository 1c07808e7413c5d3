// Times a gated delta net layer on a GPU, at the sizes of Qwen3.5-35B-A3B: norm, projections, delta
// rule, output projection.
//
// delta_layer_gpu_bench [--repeats N]
//
// Medians of a captured graph of a decode step of 16 layers, each with its own weights and states
// so that none are in L2, in us of a layer. `floor`: weights, and states read and written once,
// at 4.8 TB/s. Parts: the layer without one part, and each part alone; a part that waits for
// nothing overlaps with itself, so parts do not add up.
#include <array>
#include <random>

#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/operators/delta_rule.h"
#include "kernels/cuda/sm90/matmul/matmul.h"
#include "kernels/cuda/sm90/rowwise/rowwise.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kHidden = 2048, kLayers = 16, kMost = 64;
constexpr std::int32_t kCached = 100;  // tokens of each request before the step
constexpr DeltaRuleProblem kProblem{.heads = 32,
                                    .key_heads = 16,
                                    .dk = 128,
                                    .dv = 128,
                                    .conv = 4,
                                    .decay = DeltaDecay::per_head,
                                    .gate = DeltaGate::softplus,
                                    .output = DeltaOutput::silu};

enum Part { norm = 1, projections = 2, delta = 4, out_projection = 8, all = 15 };

class Bench {
 public:
  explicit Bench(int repeats) : repeats_(repeats), device_(need(open_device())) {
    std::printf("%s\n", device_.model.c_str());
    std::normal_distribution<float> normal(0, 0.05f);
    std::vector<bf16> noise(std::size_t{1} << 20);
    for (bf16& v : noise) v = to_bf16(normal(random_));
    const DeviceArray<bf16> values = upload(noise, stream_);
    for (Layer& layer : layers_) {
      layer.qkv = weight(values, kProblem.channels(), kHidden);
      layer.z = weight(values, kProblem.value_cols(), kHidden);
      layer.b = weight(values, kProblem.heads, kHidden);
      layer.a = weight(values, kProblem.heads, kHidden);
      layer.out = weight(values, kHidden, kProblem.value_cols());
    }
    for (const auto* array : {&states_, &x_, &h_, &in_, &made_}) clear(*array);
    need(stream_.wait());
  }

  void run() {
    std::printf("%9s %8s %8s", "requests", "layer", "floor");
    for (const char* name : {"-norm", "-proj", "-delta", "-out", "norm", "proj", "delta", "out"}) {
      std::printf(" %8s", name);
    }
    std::printf("\n");
    for (const std::int64_t requests : {1, 2, 4, 8, 16, 64}) {
      const double bytes = 2. * kHidden * static_cast<double>(kProblem.channels() + 64) +
                           4. * kHidden * static_cast<double>(kProblem.value_cols()) +
                           2. * static_cast<double>(requests * delta_state_bytes(kProblem));
      std::printf("%9lld %8.1f %8.1f", static_cast<long long>(requests), time(requests, all),
                  bytes / 4.8e6);
      for (const int part : {norm, projections, delta, out_projection}) {
        std::printf(" %8.1f", time(requests, all - part));
      }
      for (const int part : {norm, projections, delta, out_projection}) {
        std::printf(" %8.1f", time(requests, part));
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }

 private:
  struct Layer {
    WeightView qkv, z, b, a, out;
  };

  void clear(const DeviceArray<float>& array) {
    need(call_result(
        cudaMemsetAsync(array.data(), 0, static_cast<std::size_t>(array.size()) * 4, stream_),
        "cudaMemsetAsync"));
  }
  WeightView weight(const DeviceArray<bf16>& from, std::int64_t rows, std::int64_t cols) {
    weights_.push_back(need(DeviceArray<bf16>::make(rows * cols)));
    const std::int64_t size = rows * cols;
    for (std::int64_t at = 0; at < size; at += from.size()) {
      need(call_result(
          cudaMemcpyAsync(weights_.back().data() + at, from.data(),
                          2 * static_cast<std::size_t>(std::min(from.size(), size - at)),
                          cudaMemcpyDeviceToDevice, stream_),
          "cudaMemcpyAsync"));
    }
    return {.data = reinterpret_cast<const std::byte*>(weights_.back().data()),
            .dtype = DType::bf16,
            .rows = rows,
            .cols = cols};
  }
  static MutableRowsView rows_of(float* at, DType dtype, std::int64_t rows, std::int64_t cols) {
    return {reinterpret_cast<std::byte*>(at), dtype, rows, cols, cols};
  }

  double time(std::int64_t requests, int parts) {
    const auto count = static_cast<std::size_t>(requests);
    std::vector<std::int32_t> numbers(count + 1), slots(2 * count), position(count, kCached),
        lens(count, kCached + 1);
    for (std::size_t i = 0; i <= count; ++i) numbers[i] = static_cast<std::int32_t>(i);
    // As in an engine, a step reads a slot and writes another.
    for (std::size_t i = 0; i < count; ++i) {
      slots[i] = static_cast<std::int32_t>(2 * i);
      slots[count + i] = slots[i] + 1;
    }
    const auto of_numbers = upload(numbers, stream_), of_positions = upload(position, stream_);
    const auto of_lens = upload(lens, stream_), of_slots = upload(slots, stream_);
    const auto* const pages = reinterpret_cast<const PageId*>(of_slots.data());
    StepView step;
    step.phase = Phase::decode;
    step.rows = step.requests = requests;
    step.max_rows = 1;
    step.positions = {reinterpret_cast<const LocalPos*>(of_positions.data()), count};
    step.row_request = {of_numbers.data(), count};
    step.q_indptr = {of_numbers.data(), count + 1};
    step.kv_lens = {of_lens.data(), count};
    step.state_before = {pages, count};
    step.state_table = {pages + count, requests, 1};
    step.state_tokens = 1024;
    const auto work = [&]() -> Result<void> {
      for (std::size_t l = 0; l < layers_.size(); ++l) {
        if (auto ok = launch(step, l, parts); !ok) return ok;
      }
      return {};
    };
    need(work());
    need(stream_.wait());
    Graph graph = need(Graph::capture(stream_, work));
    std::vector<double> times;
    for (int i = -2; i < repeats_; ++i) {
      const double t = time_once(stream_, [&] { return graph.launch(stream_); });
      if (i >= 0) times.push_back(1e6 * t / kLayers);
    }
    return median(times);
  }

  Result<void> launch(const StepView& step, std::size_t l, int parts) {
    const Layer& w = layers_[l];
    const std::int64_t rows = step.rows, values = kProblem.value_cols();
    const auto x = rows_of(x_.data(), DType::f32, rows, kHidden);
    const auto h = rows_of(h_.data(), DType::bf16, rows, kHidden);
    const auto qkv = rows_of(in_.data(), DType::f32, rows, kProblem.channels());
    const auto gate = rows_of(in_.data() + kMost * 8192, DType::f32, rows, values);
    const auto beta = rows_of(in_.data() + kMost * 12288, DType::f32, rows, kProblem.heads);
    const auto decay = rows_of(in_.data() + kMost * 12544, DType::f32, rows, kProblem.heads);
    const auto made = rows_of(made_.data(), DType::bf16, rows, values);
    const std::span<const float> ones(ones_.data(), static_cast<std::size_t>(ones_.size()));
    if (parts & norm) {
      const NormParams p{.x = device_rows(constant(x)),
                         .weight = ones.data(),
                         .out = device_rows(h),
                         .rows = rows,
                         .cols = kHidden,
                         .heads = 1,
                         .eps = 1e-6f};
      if (auto ok = call_result(launch_norm(p, stream_), "norm"); !ok) return ok;
    }
    if (parts & projections) {
      const std::array calls{MatmulCall{.x = constant(h), .w = w.qkv, .out = qkv},
                             MatmulCall{.x = constant(h), .w = w.z, .out = gate},
                             MatmulCall{.x = constant(h), .w = w.b, .out = beta},
                             MatmulCall{.x = constant(h), .w = w.a, .out = decay}};
      if (auto ok = matmul_on_device(calls, stream_); !ok) return ok;
    }
    const std::int64_t bytes = delta_state_bytes(kProblem);
    if (parts & delta) {
      const DeltaRule op{.step = &step,
                         .problem = kProblem,
                         .x = constant(qkv),
                         .decay = constant(decay),
                         .beta = constant(beta),
                         .gate = constant(gate),
                         .conv = ones.first(4 * static_cast<std::size_t>(kProblem.channels())),
                         .a_log = ones.first(32),
                         .dt_bias = ones.first(32),
                         .norm = ones.first(128),
                         .norm_eps = 1e-6f,
                         .out = made,
                         .state = {reinterpret_cast<std::byte*>(states_.data()) +
                                       static_cast<std::int64_t>(l) * 2 * kMost * bytes,
                                   bytes, 1}};
      if (auto ok = delta_rule(op, tensors_, stream_); !ok) return ok;
    }
    if (parts & out_projection) {
      const MatmulCall call{.x = constant(made), .w = w.out, .out = x, .add = true};
      return matmul_on_device({&call, 1}, stream_);
    }
    return {};
  }

  int repeats_;
  std::mt19937 random_{20261129};
  Device device_;
  Stream stream_ = need(Stream::make());
  Arena tensors_{kDeviceMemory};
  std::vector<DeviceArray<bf16>> weights_;
  std::array<Layer, kLayers> layers_;
  static DeviceArray<float> floats(std::int64_t count) {
    return need(DeviceArray<float>::make(count));
  }
  DeviceArray<float> states_ = floats(kLayers * 2 * kMost * (delta_state_bytes(kProblem) / 4));
  DeviceArray<float> x_ = floats(kMost * kHidden), h_ = floats(kMost * kHidden);
  DeviceArray<float> in_ = floats(kMost * 16384), made_ = floats(kMost * kProblem.value_cols());
  DeviceArray<float> ones_ = upload(std::vector<float>(std::size_t{1} << 16, 0.5f), stream_);
};

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  return lathe::cuda::run_with_options(argc, argv, [](int repeats, bool) {
    lathe::cuda::Bench(repeats).run();
    return 0;
  });
}
