// The output of every sublayer of DeepSeek V4 against Hugging Face transformers with a cache
// rounded like Lathe's (tools/fixtures/make_v4_fixtures.py): streams, the entries that rows select,
// and all entries.
#include <algorithm>

#include "layout/codec/codec.h"
#include "model/test/choice_backend_test_util.h"
#include "model/test/generated_checkpoint.h"
#include "model/test/test_util.h"

namespace lathe {
namespace {

constexpr const char* kFixture = "deepseek_v4";
// Relative error of a sublayer's streams, which contains the error of all sublayers before it.
constexpr double kSublayerTolerance = 1e-4;

/// Keeps the streams after each sublayer, and the keys that indexers choose.
class SublayerBackend : public ChoiceBackend {
 public:
  SublayerBackend(Backend& inner, Choices& choices) : ChoiceBackend(inner, Mode::writes, choices) {}
  void hyper_add(const OpsContext& ops, const HyperAdd& op) override {
    ChoiceBackend::hyper_add(ops, op);
    for (std::int64_t row = 0; row < op.x.rows; ++row) {
      const auto* from = reinterpret_cast<const float*>(op.x.row(row));
      streams.emplace_back(from, from + op.x.cols);
    }
  }
  std::vector<std::vector<float>> streams;  // [sublayers * rows], of one step
};

class V4Sublayers : public testing::Test {
 protected:
  V4Sublayers() {
    auto model = load_model(checkpoint_.dir(), {});
    EXPECT_TRUE(model.ok()) << (model ? "" : model.error().message());
    model_ = std::move(*model);
    runner_ = std::make_unique<ModelRunner>(*model_, ModelRunner::Options{.layout = "mla_bf16",
                                                                          .prefill = "inplace",
                                                                          .decode = "inplace",
                                                                          .page_size = 128,
                                                                          .backend = &backend_});
    tokens_ = file_.values<std::int32_t>("sublayers.tokens");
    positions_ = file_.values<std::int32_t>("sublayers.positions");
    runner_->prompt(0, tokens_);
  }
  // The slot of the first request's entry; ModelRunner gives that request every kRequests-th page
  // from the back.
  static Slot slot_of_entry(const PoolShape& pool, std::int32_t entry) {
    const std::int64_t page = pool.pages - 1 - entry / pool.page_size * ModelRunner::kRequests;
    return slot_of(PageId(static_cast<std::int32_t>(page)), pool.page_size, entry % pool.page_size);
  }
  std::int32_t layers() const { return model_->config().layers; }
  std::vector<std::int32_t> layers_of(std::int32_t ratio, bool or_more = false) const {
    std::vector<std::int32_t> out;
    for (const LayerGroupConfig& g : model_->config().groups) {
      const std::int32_t own = g.problem.compress_ratio;
      if (own == ratio || (or_more && own > ratio)) {
        out.insert(out.end(), g.layers.begin(), g.layers.end());
      }
    }
    std::ranges::sort(out);
    return out;
  }

  GeneratedCheckpoint checkpoint_{fixture_dir(kFixture)};
  TensorFile file_{fixture_dir(kFixture) + "/reference.safetensors"};
  std::unique_ptr<Backend> cpu_ = std::move(*make_backend(Device::cpu));
  Choices choices_;
  SublayerBackend backend_{*cpu_, choices_};
  std::unique_ptr<Model> model_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<std::int32_t> tokens_, positions_;
};

TEST_F(V4Sublayers, LeaveTheReferencesStreams) {
  const auto want = file_.values<float>("sublayers.streams");
  const auto width = static_cast<std::size_t>(model_->config().state_width());
  const auto sublayers = static_cast<std::size_t>(2 * layers());
  ASSERT_EQ(backend_.streams.size(), sublayers * tokens_.size());
  ASSERT_EQ(want.size(), sublayers * positions_.size() * width);
  for (std::size_t s = 0; s < sublayers; ++s) {
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      const auto at = static_cast<std::size_t>(positions_[i]);
      const double error =
          relative_error(backend_.streams[s * tokens_.size() + at],
                         std::span(want).subspan((s * positions_.size() + i) * width, width));
      EXPECT_LE(error, kSublayerTolerance)
          << (s % 2 == 0 ? "attention" : "experts") << " of layer " << s / 2 << ", position " << at;
    }
  }
}

TEST_F(V4Sublayers, ChooseTheReferencesEntries) {
  const std::vector<std::int32_t> choosing = layers_of(4);
  ASSERT_EQ(choices_.keys.size(), choosing.size());
  for (std::size_t i = 0; i < choosing.size(); ++i) {
    const auto want = file_.values<std::int32_t>("sublayers.keys." + std::to_string(choosing[i]));
    const PoolShape pool = runner_->cache().chosen_shape(choosing[i]);
    const std::size_t k = want.size() / positions_.size();
    ASSERT_EQ(choices_.keys[i].size(), tokens_.size() * k);
    for (std::size_t row = 0; row < positions_.size(); ++row) {
      std::vector<std::int32_t>
          slots;  // of the reference's entries, which are padded in front by -1
      for (const std::int32_t entry : std::span(want).subspan(row * k, k)) {
        slots.push_back(entry < 0 ? -1 : slot_of_entry(pool, entry).value);
      }
      const auto own =
          std::span(choices_.keys[i]).subspan(static_cast<std::size_t>(positions_[row]) * k, k);
      EXPECT_THAT(own, testing::UnorderedElementsAreArray(slots))
          << "layer " << choosing[i] << ", position " << positions_[row];
    }
  }
}

// The bound covers the rounding to bf16 pages and the error of the streams before.
TEST_F(V4Sublayers, WriteTheReferencesEntries) {
  for (const std::int32_t layer : layers_of(4, true)) {
    const auto want = file_.values<float>("sublayers.entries." + std::to_string(layer));
    const PoolView pool = runner_->cache().compressed(layer);
    const std::int32_t dim = pool.layout.row_elems();
    const auto entries = static_cast<std::int32_t>(std::ssize(want) / dim);
    ASSERT_GE(entries, 2);
    std::vector<float> got(static_cast<std::size_t>(dim));
    const MutableRowsView row{reinterpret_cast<std::byte*>(got.data()), DType::f32, 1, dim, dim};
    for (std::int32_t e = 0; e < entries; ++e) {
      const Slot slot = slot_of_entry(runner_->cache().chosen_shape(layer), e);
      ASSERT_TRUE(gather_decode(pool, std::span(&slot, 1), row).ok());
      const auto wanted = std::span(want).subspan(static_cast<std::size_t>(e * dim), got.size());
      double squares = 0;
      for (const float v : wanted) squares += double{v} * v;
      const double error = kSublayerTolerance * std::sqrt(squares / dim);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], wanted[i], std::abs(wanted[i]) * 0x1p-8 + error)
            << "layer " << layer << ", entry " << e << ", element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lathe
