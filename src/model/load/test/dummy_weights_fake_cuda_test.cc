// Random weights that the device makes against those that the host makes and copies.
#include "model/load/dummy_weights.h"

#include <gtest/gtest.h>

#include <memory>
#include <unordered_set>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/fake/fake_cuda.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"
#include "kernels/test/forwarding_backend_test_util.h"
#include "model/config/split_sizes.h"
#include "model/load/prepare_weights.h"
#include "model/test/ranked_model_test_util.h"

namespace lathe {
namespace {

class DummyWeights : public testing::TestWithParam<const char*> {
 protected:
  struct Filled {
    explicit Filled(const ModelConfig& config) : weights(config) {}
    ModelWeights weights;
    std::vector<TensorSpec> table;
  };

  // backend: null: on the host.
  static std::unique_ptr<Filled> fill(const ModelConfig& config, const Parallel& parallel,
                                      std::int32_t rank, Backend* backend) {
    auto out = std::make_unique<Filled>(config);
    out->table = tensor_table(config, out->weights, share_of(split_sizes(config), parallel, rank));
    LoadOptions options;
    options.backend = backend;
    EXPECT_TRUE(fill_dummy(config, options, out->table, out->weights).ok());
    return out;
  }

  std::vector<std::byte> read(const void* there, std::int64_t bytes) {
    std::vector<std::byte> out(static_cast<std::size_t>(bytes));
    if (bytes == 0) return out;
    const auto* from = static_cast<const std::byte*>(there);
    EXPECT_TRUE(backend_->download(ops_, from, std::span(out)).ok());
    return out;
  }
  void expect_equal(const void* made, const void* copied, std::int64_t bytes, const char* what) {
    ASSERT_EQ(made == nullptr, copied == nullptr) << what;
    if (made != nullptr) {
      EXPECT_EQ(read(made, bytes), read(copied, bytes)) << what;
    }
  }
  void expect_equal(const WeightView& made, const WeightView& copied) {
    ASSERT_EQ(made.dtype, copied.dtype);
    ASSERT_EQ(made.rows, copied.rows);
    ASSERT_EQ(made.cols, copied.cols);
    ASSERT_EQ(made.groups.size, copied.groups.size);
    const std::int64_t n = made.rows * made.cols;
    expect_equal(made.data, copied.data, bytes_of(made.dtype, n), "elements");
    expect_equal(made.scales, copied.scales, 4 * made.scale_count(), "scales");
    expect_equal(made.mx_scales, copied.mx_scales, n / kMxBlock, "scales of MXFP4");
    if (made.groups.size == 0) return;
    ASSERT_EQ(made.groups.dtype, copied.groups.dtype);
    const std::int64_t places = cuda::packed_groups(made.rows, made.cols, made.groups.size).count();
    expect_equal(made.groups.data, copied.groups.data, bytes_of(made.groups.dtype, places),
                 "scales of groups");
    expect_equal(made.groups.zeros, copied.groups.zeros, places, "zeros");
  }

  std::unique_ptr<Backend> backend_ = std::move(*cuda::make_cuda_backend({}));
  OpsContext ops_ = [this] {
    OpsContext ops;
    ops.backend = backend_.get();
    return ops;
  }();
};

// Whole models, and shares with parts of matrices, of every format.
TEST_P(DummyWeights, HaveTheHostsBits) {
  const ModelConfig config = *load_model_config(fixture_dir(GetParam()));
  const SplitSizes sizes = split_sizes(config);
  for (const auto& [parallel, rank] :
       {std::pair{Parallel{}, 0}, {Parallel{2, 2, 1}, 1}, {Parallel{4, 2, 2}, 3}}) {
    if (sizes.experts % parallel.expert_number != 0 || !divides(config, parallel.tp)) continue;
    const auto made = fill(config, parallel, rank, backend_.get());
    const auto host = fill(config, parallel, rank, nullptr);
    std::vector<OwnedBytes> owned;
    std::unordered_set<const void*> seen;
    std::size_t compared = 0;
    for (std::size_t i = 0; i < made->table.size(); ++i) {
      const TensorSpec &m = made->table[i], &h = host->table[i];
      SCOPED_TRACE(m.name);
      if (m.place < 0) continue;
      if (m.stack != nullptr) {
        if (m.stack->count() == 0 || !seen.insert(m.stack).second) continue;
        const auto copied = backend_->prepare(*h.stack, owned);
        ASSERT_TRUE(copied.ok());
        ASSERT_EQ(m.stack->count(), copied->count());
        for (std::int64_t k = 0; k < copied->count(); ++k) {
          expect_equal(m.stack->at(k), copied->at(k));
        }
        compared += m.stack->count();
      } else if (m.matrix != nullptr && made->weights.on_device.contains(m.matrix)) {
        const auto copied = backend_->prepare(*h.matrix, owned);
        ASSERT_TRUE(copied.ok());
        expect_equal(*m.matrix, *copied);
        ++compared;
      }
    }
    ASSERT_TRUE(backend_->end_prepare().ok());
    EXPECT_GT(compared, 5u);
  }
}

// Does not say how many bytes come, so every array has an allocation.
struct Unannounced : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void begin_prepare(const WeightSource&) override {}
};

// All arrays of a model are in one allocation, which is as large as they are.
TEST_P(DummyWeights, HaveOneAllocation) {
  const ModelConfig config = *load_model_config(fixture_dir(GetParam()));
  EXPECT_EQ(fill(config, {}, 0, backend_.get())->weights.prepared.size(), 1u);
  const auto prepare = [&](Backend& backend, std::size_t& allocations) {
    const auto host = fill(config, {}, 0, nullptr);
    LoadOptions options;
    options.backend = &backend;
    const std::int64_t before = cuda::fake::device_bytes();
    EXPECT_TRUE(prepare_weights(options, nullptr, host->table, host->weights).ok());
    allocations = host->weights.prepared.size();
    return cuda::fake::device_bytes() - before;
  };
  std::size_t one = 0, all = 0;
  const std::int64_t together = prepare(*backend_, one);
  Unannounced unannounced(*backend_);
  const std::int64_t apart = prepare(unannounced, all);
  EXPECT_EQ(one, 1u);
  EXPECT_GT(all, 20u);
  EXPECT_GE(together, apart);
  EXPECT_LE(together, apart + 256 * static_cast<std::int64_t>(all));
}

INSTANTIATE_TEST_SUITE_P(Formats, DummyWeights,
                         testing::Values("qwen3_moe", "deepseek_v3_fp8", "gpt_oss", "gpt_oss_bf16",
                                         "qwen3_vl_moe", "deepseek_v4", "deepseek_v4_fp8",
                                         "formats_int4", "formats_fp4", "formats_fp8",
                                         "formats_experts"),
                         [](const auto& fixture) { return std::string(fixture.param); });

}  // namespace
}  // namespace lathe
