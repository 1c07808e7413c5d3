// RealRanks: a real model on several ranks, with all that an engine needs of each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/runner/ranked_runner.h"
#include "engine/test/late_backend_test_util.h"
#include "engine/test/real_model_test_util.h"
#include "kernels/host_communicator.h"
#include "kernels/test/faulty_communicator_test_util.h"
#include "model/test/ranked_model_test_util.h"

namespace lathe {

class RealRanks {
 public:
  /// change: sets what goes wrong on a rank; may be null.
  RealRanks(const std::string& directory, std::int32_t ranks, const RealSetup::Options& options,
            bool drafts = false, void (*change)(std::int32_t, Faults&) = nullptr) {
    std::vector<std::unique_ptr<Communicator>> all;
    for (auto& inner : make_host_communicators(ranks)) {
      Faults faults{.seed = static_cast<std::uint64_t>(inner->rank())};
      if (change != nullptr) change(inner->rank(), faults);
      auto watched = std::make_unique<FaultyCommunicator>(std::move(inner), faults);
      std::uint64_t& hash = *hashes_.emplace_back(std::make_unique<std::uint64_t>(0));
      watched->on_rows = [&hash](const RowsView& rows) { hash = 31 * hash + hash_rows(rows); };
      all.push_back(std::move(watched));
    }
    group_ = std::make_unique<RankGroup>(std::move(all));
    other_.group = group_.get();
    for (std::int32_t r = 0; r < ranks; ++r) {
      LoadOptions load;
      load.drafts = drafts;
      load.parallel = {ranks, ranks, 1};
      load.rank = r;
      auto model = load_model(directory, load);
      EXPECT_TRUE(model) << model.error().message();
      models_.push_back(std::move(*model));
      RealSetup& setup =
          *setups_.emplace_back(std::make_unique<RealSetup>(*models_.back(), options));
      OpsContext ops = setup.ops();
      ops.communicator = &group_->communicator(r);
      if (options.late) {
        late_.push_back(std::make_unique<LateCommunicator>(static_cast<LateBackend&>(*ops.backend),
                                                           group_->communicator(r)));
        ops.communicator = late_.back().get();
      }
      if (r == 0) {
        ops_ = ops;
      } else {
        other_.models.push_back({models_.back().get(), &setup.cache(), ops});
      }
    }
  }

  const Model& model() const { return *models_.front(); }
  KvCache& cache() { return setups_.front()->cache(); }
  const OpsContext& ops() const { return ops_; }
  const OtherRanks& others() const { return other_; }
  RankGroup& group() { return *group_; }
  /// Expects that every exchange so far has left the same bits on all ranks.
  void expect_equal_rows() const {
    for (const auto& hash : hashes_) EXPECT_EQ(*hash, *hashes_.front());
  }
  Engine engine(EngineOptions options = {}) {
    options.ranks = &other_;
    auto made = Engine::create(model(), cache(), options, ops_);
    EXPECT_TRUE(made) << made.error().message();
    return std::move(*made);
  }

 private:
  std::vector<std::unique_ptr<Model>> models_;
  std::vector<std::unique_ptr<RealSetup>> setups_;
  std::vector<std::unique_ptr<std::uint64_t>> hashes_;  // [ranks] of all rows so far
  std::unique_ptr<RankGroup> group_;
  std::vector<std::unique_ptr<Communicator>> late_;
  OtherRanks other_;
  OpsContext ops_;
};

}  // namespace lathe
