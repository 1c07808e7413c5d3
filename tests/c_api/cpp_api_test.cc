// The public C++ headers, against the double-precision device.
#include <gtest/gtest.h>
#include <lathe/attend.h>
#include <lathe/codec.h>
#include <lathe/engine.h>
#include <lathe/layout.h>
#include <lathe/plan.h>

#include <cmath>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {

using lathe::Tensor;

struct Scene {
  static constexpr std::int64_t kRows = 3, kHeads = 4, kPages = 4, kPage = 32;
  lathe::Layout layout = lathe::Layout::parse("mla_fp8_block").value();
  std::vector<unsigned char> bytes;
  std::vector<float> rows, q, out, lse;
  std::vector<std::int32_t> slots, table{2, 0, 3, 1}, lens{97}, first{0, 3};
  lathe::Pool pool{layout, {}, kPage};
  lathe::AttendArgs args;

  Scene() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, std::int64_t n) {
      x.resize(static_cast<std::size_t>(n));
      for (float& v : x) v = normal(random);
    };
    bytes.assign(static_cast<std::size_t>(kPages * layout.page_stride(kPage).value()), 0xff);
    pool.pages = Tensor(bytes.data(), lathe::kUint8, {static_cast<std::int64_t>(bytes.size())});
    fill(rows, 97 * 576);
    fill(q, kRows * kHeads * 576);
    for (std::int32_t t = 0; t < 97; ++t) slots.push_back(table[t / 32u] * 32 + t % 32);
    args.attention = "mla";
    args.pool = &pool;
    args.q = Tensor(q.data(), lathe::kFloat32, {kRows, kHeads, 576});
    args.page_table = Tensor(table.data(), lathe::kInt32, {1, 4});
    args.kv_lens = Tensor(lens.data(), lathe::kInt32, {1});
    args.q_indptr = Tensor(first.data(), lathe::kInt32, {2});
    write_to(out, lse);
    lathe::encode(pool, Tensor(rows.data(), lathe::kFloat32, {97, 576}),
                  Tensor(slots.data(), lathe::kInt32, {97}))
        .value();
  }
  void write_to(std::vector<float>& o, std::vector<float>& l) {
    o.assign(kRows * kHeads * 512, NAN);
    l.assign(kRows * kHeads, NAN);
    args.out = Tensor(o.data(), lathe::kFloat32, {kRows, kHeads, 512});
    args.lse = Tensor(l.data(), lathe::kFloat32, {kRows, kHeads});
  }
};

TEST(CppApi, AttendsAsTheReferenceDoes) {
  Scene s;
  lathe::attend(s.args).value();
  std::vector<float> out, lse;
  s.write_to(out, lse);
  s.args.device = "ref";
  lathe::attend(s.args).value();
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(s.out[i], out[i], 1e-5);
  for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(s.lse[i], lse[i], 1e-5);

  s.args.device = "cpu";
  s.write_to(out, lse);
  lathe::Step step = lathe::Step::create(2).value();
  EXPECT_EQ(step.attend(s.args).error().field, "step");
  step.update(s.args).value();
  step.attend(s.args).value();
  EXPECT_EQ(out, s.out);
}

// Attention over two halves of the keys, merged, is attention over all of them.
TEST(CppApi, MergesPartsOfTheKeys) {
  Scene s;
  s.args.device = "ref";
  const auto attend_to = [&](std::size_t first, std::size_t last) {
    std::vector<std::int32_t> keys;
    for (int row = 0; row < Scene::kRows; ++row) {
      keys.insert(keys.end(), s.slots.begin() + static_cast<std::ptrdiff_t>(first),
                  s.slots.begin() + static_cast<std::ptrdiff_t>(last));
    }
    std::vector<float> out, lse;
    s.write_to(out, lse);
    s.args.page_table = s.args.kv_lens = s.args.q_indptr = {};
    s.args.attention = "dsa";
    s.args.indices =
        Tensor(keys.data(), lathe::kInt32, {Scene::kRows, static_cast<std::int64_t>(last - first)});
    lathe::attend(s.args).value();
    return std::pair(out, lse);
  };
  const auto partial = [](std::pair<std::vector<float>, std::vector<float>>& p) {
    return lathe::Partial{Tensor(p.first.data(), lathe::kFloat32, {3, 4, 512}),
                          Tensor(p.second.data(), lathe::kFloat32, {3, 4})};
  };
  auto whole = attend_to(0, 97), a = attend_to(0, 30), b = attend_to(30, 97);
  lathe::merge(partial(a), partial(b), partial(b)).value();
  for (std::size_t i = 0; i < whole.first.size(); ++i) {
    ASSERT_NEAR(b.first[i], whole.first[i], 1e-6);
  }
  for (std::size_t i = 0; i < whole.second.size(); ++i) {
    ASSERT_NEAR(b.second[i], whole.second[i], 1e-6);
  }
  EXPECT_EQ(lathe::merge(partial(a), {}, partial(b)).error().field, "out_b");
}

TEST(CppApi, RowsOfALargerTensorAreWrittenInPlace) {
  Scene s;
  lathe::attend(s.args).value();
  std::vector<float> wide(3 * 3000, -1.0f);
  s.args.out = Tensor(wide.data(), lathe::kFloat32, {3, 4, 512}, {3000, 512, 1});
  lathe::attend(s.args).value();
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const std::size_t row = i / 3000, col = i % 3000;
    ASSERT_EQ(wide[i], col < 2048 ? s.out[row * 2048 + col] : -1.0f);
  }
}

TEST(CppApi, ErrorsAreValues) {
  const auto bad = lathe::Layout::parse("mla_fp7");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().status, LATHE_INVALID_ARGUMENT);
  EXPECT_EQ(bad.error().field, "layout");
  EXPECT_THROW(bad.value(), lathe::Failure);
  const auto machine = lathe::Machine::query("sm90").value();
  const auto refused = lathe::Plan::make(
      R"({"kv_layout": "mla_fp8_block", "decode_attention_backend": "native"})", machine);
  EXPECT_EQ(refused.error().status, LATHE_REFUSED);
  const auto plan = lathe::Plan::make(R"({"kv_layout": "mla_fp8_block"})", machine).value();
  EXPECT_EQ(plan.cache(0).value().layout, lathe::Layout::parse("mla_fp8_block").value());
  EXPECT_FALSE(plan.cache(9).ok());
  Scene s;
  s.lens[0] = 1;
  EXPECT_EQ(lathe::attend(s.args).error().field, "kv_lens[0]");
}

TEST(CppApi, ACallbackMayThrow) {
  const std::string options =
      std::string("{\"device\": \"cpu\", \"model\": \"") + LATHE_MODEL + "\"}";
  EXPECT_THROW(
      (void)lathe::Engine::load(options, [](auto, auto) -> bool { throw std::domain_error("no"); }),
      std::domain_error);
  const auto stopped = lathe::Engine::load(options, [](auto, auto) { return false; });
  EXPECT_EQ(stopped.error().status, LATHE_ABORTED);
}

}  // namespace
