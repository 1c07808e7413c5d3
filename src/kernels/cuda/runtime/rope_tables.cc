#include "kernels/cuda/runtime/rope_tables.h"

#include <utility>

namespace lathe::cuda {

Result<RopeTableView> RopeTables::of(const RopeTable& table, const Stream& stream) {
  const auto known = views_.find(table.id());
  if (known != views_.end()) return known->second;
  auto there = DeviceArray<float>::make(std::ssize(table.data()));
  if (!there) return there.error();
  if (auto ok = copy_to_device(std::span(table.data()), there->data(), stream); !ok) {
    return ok.error();
  }
  if (auto ok = stream.wait(); !ok) return ok.error();
  bytes_.push_back(std::move(*there));
  const RopeTableView view{bytes_.back().data(), table.positions(), table.dim(),
                           table.config().pairing};
  views_.emplace(table.id(), view);
  return view;
}

}  // namespace lathe::cuda
