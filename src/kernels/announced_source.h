// AnnouncedSource: a WeightSource that says how much memory the weights need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/weight_source.h"

namespace lathe {

/// A device that Backend::begin_prepare() gives such a source allocates the memory of all arrays at
/// once; with another source, each array by itself.
class AnnouncedSource : public WeightSource {
 public:
  /// of: copies the weights; null: they are at their addresses. bytes: that prepare() and
  /// random_weights() will allocate, each array rounded up to 256.
  AnnouncedSource(const WeightSource* of, std::int64_t bytes) : of_(of), bytes_(bytes) {}

  std::int64_t bytes() const { return bytes_; }
  Result<void> copy(const std::byte* from, std::span<std::byte> to) const override {
    if (of_ != nullptr) return of_->copy(from, to);
    std::memcpy(to.data(), from, to.size());
    return {};
  }

 private:
  const WeightSource* of_;
  std::int64_t bytes_;
};

}  // namespace lathe
