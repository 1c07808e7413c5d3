// Compares a model on the CUDA backend with the CPU; shared by the tests on a GPU and on the
// emulator.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/register.h"
#include "model/test/choice_backend_test_util.h"
#include "model/test/test_util.h"

namespace lathe {

/// The GPU's registry for models.
inline Registry gpu_kernels() {
  Registry registry;
  add_gpu_model_adapters(registry);
  register_sm90_kernels(registry);
  return registry;
}

inline std::vector<std::int32_t> some_tokens(std::int64_t count, std::int32_t vocab) {
  std::vector<std::int32_t> out;
  for (std::int64_t t = 0; t < count; ++t) {
    out.push_back(static_cast<std::int32_t>((5 + t * 37 + t * t * 11) % vocab));
  }
  return out;
}

/// Bound on the logits' relative error norm: activations and q are rounded to bf16. The CPU replays
/// the GPU's choices of keys and experts and may disagree with few of them.
inline constexpr double kGpuBound = 2e-2, kGpuOtherChoices = 0.02;
/// The same over an fp8 cache, where a rounding difference can become a step of e4m3.
inline constexpr double kGpuBoundFp8Cache = 3e-2;
/// At published widths with delta-rule layers, whose gates and norms of single heads enlarge what
/// bf16 rounds: random layers of Qwen 3.5's widths in torch's bf16 are 9e-2 from its f32 over all
/// rows.
inline constexpr double kGpuBoundDelta = 9e-2;
/// Bound on the norm over all rows, if rows of the prompt have no bound of their own.
inline constexpr double kGpuBoundTogether = 1e-2;

/// Rows before `first` are checked only together.
inline void expect_close(const Logits& gpu, const Logits& cpu, std::size_t first, double bound) {
  ASSERT_EQ(gpu.size(), cpu.size());
  const auto likeliest = [](const std::vector<float>& row) {
    return std::max_element(row.begin(), row.end()) - row.begin();
  };
  double worst = 0, differences = 0, norms = 0;
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    double norm = 0;
    for (const float v : cpu[i]) norm += double{v} * v;
    const double error = relative_error(gpu[i], cpu[i]);
    differences += error * error * norm;
    norms += norm;
    if (i < first) continue;
    EXPECT_LT(error, bound) << "row " << i;
    worst = std::max(worst, error);
    // The likeliest token must agree if the CPU's margin is clear.
    std::vector<float> sorted = cpu[i];
    std::sort(sorted.rbegin(), sorted.rend());
    const double doubt = bound * std::sqrt(norm / static_cast<double>(cpu[i].size()));
    if (sorted[0] - sorted[1] > 4 * doubt) {
      EXPECT_EQ(likeliest(gpu[i]), likeliest(cpu[i])) << "row " << i;
    }
  }
  const double together = std::sqrt(differences / norms);
  if (first > 0) {
    EXPECT_LT(together, kGpuBoundTogether);
  }
  std::printf("relative norm of %zu rows: %.2e, worst of the last %zu: %.2e\n", gpu.size(),
              together, gpu.size() - first, worst);
}

struct GpuModelCase {
  std::string directory;  // a checkpoint, or only a config.json, for random weights
  std::string layout;
  std::string kind = "auto";
  bool expands = false;  // prompts by kind `ragged`, on both devices
  std::int64_t tokens = 21;
  std::int64_t chunk = 0;
  std::size_t decoded = 2;
  bool dummy = false;
  bool plain_products = false;
  int threads = 1;                        // on the CPU
  std::vector<std::int32_t> prompt = {};  // instead of made-up tokens
  std::size_t first = 0;                  // first row to compare separately
  double bound = 0;                       // on a row's error; 0: by the layout
};

inline void check_gpu_model(const GpuModelCase& c) {
  SCOPED_TRACE(c.directory + " " + c.layout + " " + c.kind);
  auto backend = cuda::make_cuda_backend({.plain_products = c.plain_products});
  ASSERT_TRUE(backend.ok()) << backend.error().message();
  const auto load = [&](Backend* on) {
    LoadOptions options;
    options.backend = on;
    options.expansion = on == nullptr;
    options.dummy = c.dummy;
    auto model = load_model(c.directory, options);
    EXPECT_TRUE(model.ok()) << (model ? "" : model.error().message());
    return std::move(*model);
  };
  const auto on_cpu = load(nullptr);
  const auto on_gpu = load(backend->get());
  ModelRunner::Options options;
  options.layout = c.layout;
  const auto tokens = c.prompt.empty() ? some_tokens(c.tokens, on_cpu->config().vocab) : c.prompt;
  options.context = (std::ssize(tokens) + 255) / 256 * 256;
  options.threads = c.threads;
  // A page of entries of 128 tokens holds at least one.
  options.page_size = on_cpu->config().is_compressed() ? 128 : 64;
  const auto cpu_backend = make_cpu_backend();
  Choices choices;
  ChoiceBackend takes(*cpu_backend, ChoiceBackend::Mode::takes, choices);
  ChoiceBackend writes(**backend, ChoiceBackend::Mode::writes, choices);
  options.backend = &takes;
  // Expanded attention would choose no keys.
  options.prefill = c.expands ? "ragged" : "inplace";
  options.decode = "inplace";
  ModelRunner cpu(*on_cpu, options);
  options.device = Device::sm90;
  options.backend = &writes;
  options.kernels = gpu_kernels;
  options.precision = MatmulPrecision::bf16;
  options.prefill = c.expands ? "ragged" : c.kind;
  options.decode = c.kind;
  ModelRunner gpu(*on_gpu, options);
  const auto chunk = static_cast<std::size_t>(c.chunk);
  const Logits there = gpu.prompt(0, tokens, chunk, c.decoded);
  const double bound = c.bound > 0                                 ? c.bound
                       : c.layout.find("fp8") == std::string::npos ? kGpuBound
                                                                   : kGpuBoundFp8Cache;
  expect_close(there, cpu.prompt(0, tokens, chunk, c.decoded), c.first, bound);
  EXPECT_TRUE(choices.keys.empty() && choices.routed.empty()) << "the CPU made fewer calls";
  std::printf("%lld of %lld choices are not the CPU's\n", static_cast<long long>(choices.others),
              static_cast<long long>(choices.made));
  EXPECT_LE(static_cast<double>(choices.others),
            kGpuOtherChoices * static_cast<double>(choices.made));
}

}  // namespace lathe
