// RankedModel: a model on several ranks of this process, each with a thread, a share of the weights
// and a cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/rows_view.h"
#include "kernels/host_communicator.h"
#include "kernels/test/faulty_communicator_test_util.h"
#include "model/config/split_sizes.h"
#include "model/test/test_util.h"

namespace lathe {

/// Whether the ranks can divide the model's heads and groups of heads.
inline bool divides(const ModelConfig& config, std::int32_t ranks) {
  const SplitSizes s = split_sizes(config);
  const bool keys = s.kv_heads == 0 || s.kv_heads % ranks == 0 || ranks % s.kv_heads == 0;
  return s.heads % ranks == 0 && s.o_groups % ranks == 0 && s.delta_keys % ranks == 0 && keys;
}

/// FNV-1a of the rows' bytes.
inline std::uint64_t hash_rows(const RowsView& rows) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    for (std::int64_t i = 0; i < bytes_of(rows.dtype, rows.cols); ++i) {
      hash = (hash ^ std::to_integer<std::uint64_t>(rows.row(r)[i])) * 0x100000001b3u;
    }
  }
  return hash;
}

class RankedModel {
 public:
  using Load = std::function<Result<std::unique_ptr<Model>>(const LoadOptions&)>;

  /// number: groups of experts by number; the ranks of a group divide each expert's width. seed,
  /// most_delay: as Faults.
  /// backend_of: each rank's backend, if not the device's own.
  RankedModel(const Load& load, std::int32_t ranks, ModelRunner::Options options = {},
              std::uint64_t seed = 0, int most_delay = 0, std::int32_t number = 1,
              const std::function<Backend*(std::int32_t)>& backend_of = {}) {
    std::vector<std::unique_ptr<Communicator>> all = make_host_communicators(ranks);
    ranks_.resize(static_cast<std::size_t>(ranks));
    for (std::int32_t r = 0; r < ranks; ++r) {
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      LoadOptions part;
      part.parallel = {ranks, ranks / number, number};
      part.rank = r;
      auto model = load(part);
      EXPECT_TRUE(model.ok()) << (model ? "" : model.error().message());
      rank.model = std::move(*model);
      const Faults faults{.seed = seed + static_cast<std::uint64_t>(r), .most_delay = most_delay};
      rank.communicator =
          std::make_unique<FaultyCommunicator>(std::move(all[static_cast<std::size_t>(r)]), faults);
      rank.communicator->on_rows = [&rank](const RowsView& rows) {
        rank.hashes.push_back(hash_rows(rows));
      };
      options.communicator = rank.communicator.get();
      if (backend_of) options.backend = backend_of(r);
      rank.runner = std::make_unique<ModelRunner>(*rank.model, options);
    }
  }

  std::int32_t size() const { return static_cast<std::int32_t>(ranks_.size()); }
  /// Logits of all rows, merged from the ranks' own rows. Expects the ranks' sums to be bit-equal.
  Logits step(const std::vector<ModelRunner::Chunk>& extend,
              const std::vector<ModelRunner::Chunk>& decode = {}) {
    std::vector<std::thread> threads;
    for (Rank& rank : ranks_) {
      threads.emplace_back([&] { rank.logits = rank.runner->step(extend, decode); });
    }
    for (std::thread& t : threads) t.join();
    std::size_t rows = 0;
    for (const Rank& rank : ranks_) {
      rows += rank.logits.size();
      EXPECT_EQ(rank.hashes, ranks_[0].hashes) << "ranks have different rows";
    }
    Logits out;
    for (std::size_t i = 0; i < rows; ++i) {
      out.push_back(ranks_[i % ranks_.size()].logits[i / ranks_.size()]);
    }
    return out;
  }
  /// As ModelRunner::prompt().
  Logits prompt(int request, const std::vector<std::int32_t>& tokens, std::size_t chunk = 0,
                std::size_t decoded = 0) {
    Logits out;
    const std::size_t prefill = tokens.size() - decoded;
    for (std::size_t at = 0; at < tokens.size();) {
      const bool decodes = at >= prefill;
      const std::size_t n = decodes ? 1 : std::min(chunk > 0 ? chunk : prefill, prefill - at);
      const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(at);
      const std::vector<ModelRunner::Chunk> rows = {
          {request, {first, first + static_cast<std::ptrdiff_t>(n)}}};
      const Logits some = decodes ? step({}, rows) : step(rows);
      out.insert(out.end(), some.begin(), some.end());
      at += n;
    }
    return out;
  }
  /// Hashes of the rows after every exchange that sums.
  const std::vector<std::uint64_t>& hashes() const { return ranks_[0].hashes; }
  std::int64_t exchanges(std::size_t rank) const { return ranks_[rank].communicator->exchanges(); }
  const Model& model(std::size_t rank) const { return *ranks_[rank].model; }
  ModelRunner& runner(std::size_t rank) { return *ranks_[rank].runner; }

 private:
  struct Rank {
    std::unique_ptr<Model> model;
    std::unique_ptr<FaultyCommunicator> communicator;
    std::unique_ptr<ModelRunner> runner;
    std::vector<std::uint64_t> hashes;
    Logits logits;
  };
  std::vector<Rank> ranks_;
};

/// Loads a fixture's share.
inline RankedModel::Load fixture_loader(const std::string& name) {
  return [dir = checkpoint_dir(fixture_dir(name))](const LoadOptions& options) {
    return load_model(dir, options);
  };
}

}  // namespace lathe
