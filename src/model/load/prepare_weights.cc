#include "model/load/prepare_weights.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "kernels/announced_source.h"
#include "model/load/prepared_bytes.h"

namespace lathe {
namespace {

// Reports how much of the weights has been prepared.
class PrepareProgress {
 public:
  PrepareProgress(std::function<void(std::int64_t, std::int64_t)> report, std::int64_t total)
      : report_(std::move(report)), total_(total) {}

  void add(std::int64_t bytes) {
    done_ = std::min(done_ + bytes, total_);
    if (report_) report_(done_, total_);
  }
  void end() {
    if (report_) report_(total_, total_);
  }

 private:
  std::function<void(std::int64_t, std::int64_t)> report_;  // or empty
  std::int64_t total_, done_ = 0;
};

// Calls visit() with each matrix, stack, vector and list of ids that the backend has not made.
template <class Visit>
Result<void> visit_weights(const std::vector<TensorSpec>& table, ModelWeights& weights,
                           const Visit& visit) {
  for (const TensorSpec& spec : table) {
    if (weights.on_device.contains(spec.matrix) || weights.on_device.contains(spec.stack)) continue;
    Result<void> ok;
    if (spec.matrix != nullptr) ok = visit(*spec.matrix);
    if (spec.vector != nullptr) ok = visit(*spec.vector);
    if (spec.ids != nullptr) ok = visit(*spec.ids);
    if (spec.stack != nullptr && spec.place == 0) ok = visit(*spec.stack);
    if (!ok) return ok;
  }
  for (LayerWeights& layer : weights.layers) {
    MlaWeights& m = layer.mla;
    for (WeightStack* stack : {&m.uk, &m.uv}) {
      if (auto ok = visit(*stack); !ok) return ok;
    }
    for (Vector* vector : {&m.w_uk, &m.w_uv, &layer.delta.conv}) {
      if (auto ok = visit(*vector); !ok) return ok;
    }
  }
  return {};
}

// What a visit adds to the memory that prepare() needs.
std::int64_t needed(const WeightView& w) { return w.data == nullptr ? 0 : prepared_bytes(w); }
std::int64_t needed(const WeightStack& s) {
  return s.count() == 0 ? 0 : prepared_bytes(s.at(0), s.count());
}
template <class T>
std::int64_t needed(std::span<const T> list) {
  return prepared_bytes(static_cast<std::int64_t>(list.size_bytes()));
}

// Bytes of weights, by which progress is reported.
std::int64_t reported(const WeightView& w) { return w.bytes(); }
std::int64_t reported(const WeightStack& s) {
  return s.count() == 0 ? 0 : s.count() * s.at(0).bytes();
}
template <class T>
std::int64_t reported(std::span<const T>) {
  return 0;
}

}  // namespace

Result<void> prepare_weights(const LoadOptions& options, const FileSource* source,
                             const std::vector<TensorSpec>& table, ModelWeights& weights) {
  Backend& backend = *options.backend;
  std::int64_t bytes = 0;
  (void)visit_weights(table, weights, [&](const auto& weight) -> Result<void> {
    bytes += needed(weight);
    return {};
  });
  const AnnouncedSource announced(source, bytes);
  backend.begin_prepare(announced);
  // Without files, on_progress has been told of all weights.
  PrepareProgress progress(source != nullptr ? options.on_progress : nullptr, weights.bytes);
  const auto ok = visit_weights(table, weights, [&](auto& weight) -> Result<void> {
    auto made = backend.prepare(weight, weights.prepared);
    if (!made) return made.error();
    progress.add(reported(weight));
    weight = std::move(made).value();
    return {};
  });
  if (!ok) return ok;
  progress.end();
  return backend.end_prepare();
}

}  // namespace lathe
