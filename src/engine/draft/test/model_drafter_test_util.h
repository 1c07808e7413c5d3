// A draft model for tests of the engine: a FakeModel.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "base/check.h"
#include "engine/draft/model_drafter.h"
#include "engine/test/fake_model_test_util.h"

namespace lathe {

/// A draft model with pools of its own. `change` may alter its drafts.
class Draft : public Drafter {
 public:
  explicit Draft(const FakeOptions& options, const ModelDrafterOptions& drafter = {})
      : setup(options), inner(create(setup, drafter)) {}

  void propose(std::span<DraftRequest> requests) override {
    setup.cache->poison_free();
    inner.propose(requests);
    for (DraftRequest& r : requests) {
      EXPECT_LE(std::ssize(r.drafts), r.most);
      if (r.most > 0) ++calls;
      if (r.most > 0 && r.drafts.empty()) ++without;
      if (change) change(r);
    }
  }
  double cost() const override { return inner.cost(); }
  void forget(RequestId id) override { inner.forget(id); }

  FakeSetup setup;
  ModelDrafter inner;
  std::function<void(DraftRequest&)> change;
  std::int64_t calls = 0;    // requests that wanted drafts, counted in each step
  std::int64_t without = 0;  // those that got none

 private:
  static ModelDrafter create(FakeSetup& setup, const ModelDrafterOptions& options) {
    auto made = ModelDrafter::create(*setup.model, *setup.cache, options, setup.ops());
    LATHE_CHECK(made, made ? "" : made.error().message());
    return std::move(*made);
  }
};

/// Expects that no request holds pages of the drafter, and that clearing its prefix cache frees the
/// rest.
inline void expect_nothing_held(Draft& draft) {
  EXPECT_EQ(draft.inner.held_pages(), 0);
  draft.inner.clear_prefix_cache();
  for (std::size_t g = 0; g < draft.setup.cache->groups(); ++g) {
    EXPECT_EQ(draft.setup.cache->ledger(g).free(), draft.setup.cache->ledger(g).total());
  }
}

}  // namespace lathe
