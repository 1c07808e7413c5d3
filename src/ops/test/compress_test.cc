// Compressed entries, on both devices against softmax means in double precision. On the CPU the
// bits do not depend on how tokens are cut into steps.
#include "ops/test/compress_test_util.h"

namespace lathe {
namespace {

using compress_test::coarse;
using compress_test::expect_entries;
using compress_test::fine;
using compress_test::Form;
using compress_test::index;
using compress_test::Layer;
using compress_test::Sequence;
using compress_test::shared_keys;

TEST(Compress, EntriesAreWeightedMeans) {
  std::mt19937 rng(test_seed(20261125));
  for (const Device device : {Device::ref, Device::cpu}) {
    for (const Form& form : {fine(), coarse(), index(), shared_keys()}) {
      const Sequence sequence(rng, form, form.ratio == 4 ? 203 : 700);
      Layer layer(form, device, 1, 2);
      layer.step({&sequence}, {sequence.tokens()});
      expect_entries(layer, 0, sequence, form.rounding());
    }
  }
}

// The carried state holds the mean of the group so far, to f32's precision.
TEST(Compress, StatesHoldTheMeansThatHaveBegun) {
  std::mt19937 rng(11);
  for (const Device device : {Device::ref, Device::cpu}) {
    for (const Form& form : {fine(), coarse()}) {
      for (const std::int64_t tokens : {1, 2, 3, 4, 5, 127, 128, 129, 255, 256, 257, 300}) {
        const Sequence sequence(rng, form, tokens);
        Layer layer(form, device, 1);
        layer.step({&sequence}, {tokens});
        const auto state = layer.state(0);
        for (std::int32_t half = 0; half < form.halves; ++half) {
          const std::int64_t g = tokens / form.ratio + half;
          for (std::int32_t i = 0; i < form.dim(); ++i) {
            const auto at = static_cast<std::size_t>(half * 3 * form.dim() + i);
            const auto dim = static_cast<std::size_t>(form.dim());
            const float m = state[at], s = state[at + dim], a = state[at + 2 * dim];
            // No token of this group has been folded yet.
            if (s == 0) {
              EXPECT_EQ(m, -INFINITY);
              EXPECT_EQ(a, 0);
              EXPECT_EQ((form.halves == 1 || half == 1) ? tokens % form.ratio : tokens, 0);
              continue;
            }
            EXPECT_NEAR(a / s, sequence.mean(g, i, tokens), 1e-5) << tokens << " tokens";
          }
        }
      }
    }
  }
}

TEST(Compress, AnyCutGivesTheSameBits) {
  const auto seed = std::random_device()();
  std::printf("seed %u\\n", seed);
  std::mt19937 rng(seed);
  for (const Form& form : {fine(), coarse(), index(), shared_keys()}) {
    const Sequence sequence(rng, form, 600);
    Layer whole(form, Device::cpu, 1, 2);
    whole.step({&sequence}, {600});
    std::vector<std::vector<std::int64_t>> cuts = {std::vector<std::int64_t>(600, 1)};
    for (std::int64_t first = 0; first <= 20; ++first) cuts.push_back({first, 600 - first});
    for (int i = 0; i < 20 * test_scale(); ++i) {
      cuts.emplace_back();
      for (std::int64_t left = 600; left > 0;) {
        const auto n = std::min<std::int64_t>(left, static_cast<std::int64_t>(rng() % 200));
        cuts.back().push_back(n);
        left -= n;
      }
    }
    for (const auto& cut : cuts) {
      Layer parts(form, Device::cpu, 1, static_cast<int>(1 + rng() % 2));
      for (const std::int64_t n : cut) {
        if (n > 0) parts.step({&sequence}, {n});
      }
      EXPECT_TRUE(parts.bytes() == whole.bytes());
      EXPECT_EQ(
          std::memcmp(parts.state(0).data(), whole.state(0).data(), whole.state(0).size_bytes()),
          0);
    }
  }
}

TEST(Compress, RejectedRowsLeaveNothing) {
  const std::uint32_t seed = test_seed(35);
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  for (const Device device : {Device::ref, Device::cpu}) {
    for (const Form& form : {fine(), coarse(), index(), shared_keys()}) {
      const auto make = [&](std::int64_t banks) { return Layer(form, device, 1, 2, banks); };
      // Device::ref rounds states at the ends of steps.
      expect_rejected_rows_leave_nothing(rng, form, 400, make, device == Device::cpu);
    }
  }
}

TEST(Compress, RequestsOfABatchDoNotTouchEachOther) {
  std::mt19937 rng(4);
  for (const Device device : {Device::ref, Device::cpu}) {
    const Form form = fine();
    const Sequence sequence(rng, form, 100);
    Layer layer(form, device, 3, 2);
    const std::vector<const Sequence*> all(3, &sequence);
    layer.step(all, {5, 0, 17});
    layer.step(all, {95, 2, 1});
    layer.step(all, {0, 98, 82});
    for (std::size_t r = 0; r < 3; ++r) expect_entries(layer, r, sequence, 0.003);
  }
}

TEST(Compress, ExtremeLogits) {
  std::mt19937 rng(8);
  for (const Device device : {Device::ref, Device::cpu}) {
    for (const Form& form : {fine(), coarse()}) {
      for (const float spread : {0.0f, 1e4f}) {
        const Sequence sequence(rng, form, 256, spread);
        Layer layer(form, device, 1);
        layer.step({&sequence}, {256});
        expect_entries(layer, 0, sequence, 0.003);
      }
    }
  }
}

}  // namespace
}  // namespace lathe
