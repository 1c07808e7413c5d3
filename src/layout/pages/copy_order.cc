#include "layout/pages/copy_order.h"

#include <unordered_map>

namespace lathe {

// A place may be overwritten when no pending copy reads it. So copies to places that are not read
// go first; each may free its source for the copy that writes there. Only cycles are left then, in
// which every place is read once and written once. For each cycle: save one place in the scratch
// record, do the other copies, and write the last place from the scratch record.
std::vector<CopyStep> copy_order(std::span<const std::int32_t> src,
                                 std::span<const std::int32_t> dst) {
  struct Place {
    std::int32_t readers = 0;  // pending copies that read this place
    std::int32_t source = -1;  // the copy to this place reads it; -1: none
    bool pending = false;      // the copy to this place is not done yet
  };
  std::unordered_map<std::int32_t, Place> places;
  places.reserve(2 * dst.size());
  for (std::size_t i = 0; i < dst.size(); ++i) {
    if (src[i] == dst[i]) continue;
    ++places[src[i]].readers;
    Place& to = places[dst[i]];
    to.source = src[i];
    to.pending = true;
  }

  std::vector<CopyStep> steps;
  steps.reserve(dst.size());
  for (std::int32_t first : dst) {
    for (std::int32_t at = first;;) {
      const auto found = places.find(at);
      if (found == places.end() || !found->second.pending || found->second.readers > 0) break;
      Place& place = found->second;
      steps.push_back({place.source, at});
      place.pending = false;
      at = place.source;
      --places[at].readers;
    }
  }
  for (std::int32_t first : dst) {
    const auto found = places.find(first);
    if (found == places.end() || !found->second.pending) continue;
    steps.push_back({first, kCopyScratch});
    for (std::int32_t at = first;;) {
      Place& place = places[at];
      place.pending = false;
      const bool last = place.source == first;
      steps.push_back({last ? kCopyScratch : place.source, at});
      if (last) break;
      at = place.source;
    }
  }
  return steps;
}

}  // namespace lathe
