#include "model/load/prepare_weights.h"

#include <algorithm>
#include <functional>
#include <utility>

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

}  // namespace

Result<void> prepare_weights(const LoadOptions& options, const FileSource* source,
                             const std::vector<TensorSpec>& table, ModelWeights& weights) {
  Backend& backend = *options.backend;
  std::function<void(std::int64_t, std::int64_t)> report;  // otherwise it was called before
  if (source != nullptr) {
    backend.begin_prepare(*source);
    report = options.on_progress;
  }
  PrepareProgress progress(std::move(report), weights.bytes);
  const auto keep = [](auto made, auto& to) -> Result<void> {
    if (!made) return made.error();
    to = std::move(made).value();
    return {};
  };
  std::vector<OwnedBytes>& owned = weights.prepared;
  for (const TensorSpec& spec : table) {
    if (weights.on_device.contains(spec.matrix) || weights.on_device.contains(spec.stack)) continue;
    Result<void> ok;
    std::int64_t bytes = 0;
    if (spec.matrix != nullptr) {
      bytes = spec.matrix->bytes();
      ok = keep(backend.prepare(*spec.matrix, owned), *spec.matrix);
    }
    if (spec.vector != nullptr) ok = keep(backend.prepare(*spec.vector, owned), *spec.vector);
    if (spec.ids != nullptr) ok = keep(backend.prepare(*spec.ids, owned), *spec.ids);
    if (spec.stack != nullptr && spec.place == 0) {
      bytes = spec.stack->count() * spec.stack->at(0).bytes();
      ok = keep(backend.prepare(*spec.stack, owned), *spec.stack);
    }
    if (!ok) return ok;
    progress.add(bytes);
  }
  for (LayerWeights& layer : weights.layers) {
    MlaWeights& m = layer.mla;
    for (WeightStack* stack : {&m.uk, &m.uv}) {
      if (auto ok = keep(backend.prepare(*stack, owned), *stack); !ok) return ok;
    }
    for (Vector* vector : {&m.w_uk, &m.w_uv, &layer.delta.conv}) {
      if (auto ok = keep(backend.prepare(*vector, owned), *vector); !ok) return ok;
    }
  }
  progress.end();
  return backend.end_prepare();
}

}  // namespace lathe
