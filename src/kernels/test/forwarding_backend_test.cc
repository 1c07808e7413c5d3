#include "kernels/test/forwarding_backend_test_util.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/devices/all.h"
#include "layout/rope/rope.h"

namespace lathe {
namespace {

// Notes the entries that another could stand in for, as they have the same arguments.
class NotingBackend : public ForwardingBackend {
 public:
  NotingBackend() : ForwardingBackend(std::move(*make_backend(Device::ref))) {}
  mutable std::vector<std::string> called;

  Result<void> note(const char* entry) const {
    called.emplace_back(entry);
    return {};
  }
  bool note_flag(const char* entry) const {
    called.emplace_back(entry);
    return true;
  }
  Result<void> rotate_rows(const OpsContext&, const RopeTable&, std::span<const LocalPos>,
                           const MutableRowsView&, std::int64_t, std::int64_t) override {
    return note("rotate_rows");
  }
  Result<void> unrotate_rows(const OpsContext&, const RopeTable&, std::span<const LocalPos>,
                             const MutableRowsView&, std::int64_t, std::int64_t) override {
    return note("unrotate_rows");
  }
  Result<void> end_prepare() override { return note("end_prepare"); }
  Result<void> collect_counts() override { return note("collect_counts"); }
  Result<void> wait() override { return note("wait"); }
  Result<void> begin_next_step() override { return note("begin_next_step"); }
  bool replays() const override { return note_flag("replays"); }
  bool overlaps() const override { return note_flag("overlaps"); }
  bool gated_matmul(const OpsContext&, const GatedProduct&) override {
    return note_flag("gated_matmul");
  }
  Result<bool> prepare_qkv(const OpsContext&, const QkvRows&, const PoolView&) override {
    return note_flag("prepare_qkv");
  }
  Result<bool> prepare_latent(const OpsContext&, const LatentRows&, const PoolView&) override {
    return note_flag("prepare_latent");
  }
};

// The compiler checks that every entry is there, and by its arguments that most call their own.
TEST(ForwardingBackend, CallsTheEntryOfTheSameName) {
  NotingBackend inner;
  ForwardingBackend outer(static_cast<Backend&>(inner));
  const auto made = RopeTable::make({.dim = 2}, 1);
  ASSERT_TRUE(made);
  const RopeTable& table = *made;
  const CacheLayout layout(LayoutKind::mla_bf16, {});
  std::vector<std::byte> page(static_cast<std::size_t>(layout.page_stride(1)));
  const PoolView pool(page.data(), layout, 1, 1);
  const OpsContext ops;
  EXPECT_TRUE(outer.rotate_rows(ops, table, {}, {}, 1, 0));
  EXPECT_TRUE(outer.unrotate_rows(ops, table, {}, {}, 1, 0));
  EXPECT_TRUE(outer.end_prepare());
  EXPECT_TRUE(outer.collect_counts());
  EXPECT_TRUE(outer.wait());
  EXPECT_TRUE(outer.begin_next_step());
  EXPECT_TRUE(outer.replays());
  EXPECT_TRUE(outer.overlaps());
  EXPECT_TRUE(outer.gated_matmul(ops, {}));
  EXPECT_TRUE(*outer.prepare_qkv(ops, {}, pool));
  EXPECT_TRUE(*outer.prepare_latent(ops, {}, pool));
  const std::vector<std::string> expected = {"rotate_rows",    "unrotate_rows", "end_prepare",
                                             "collect_counts", "wait",          "begin_next_step",
                                             "replays",        "overlaps",      "gated_matmul",
                                             "prepare_qkv",    "prepare_latent"};
  EXPECT_EQ(inner.called, expected);
}

}  // namespace
}  // namespace lathe
