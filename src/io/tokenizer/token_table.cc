#include "io/tokenizer/token_table.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace lathe {

TokenTable::TokenTable(std::vector<std::string> strings) : strings_(std::move(strings)) {
  const auto used = static_cast<std::size_t>(std::count_if(
      strings_.begin(), strings_.end(), [](const std::string& s) { return !s.empty(); }));
  slots_.resize(std::bit_ceil(2 * used + 1));
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t id = 0; id < strings_.size(); ++id) {
    const std::string& s = strings_[id];
    if (s.empty() || find(s) >= 0) continue;
    longest_ = std::max(longest_, s.size());
    const std::size_t hash = std::hash<std::string_view>{}(s);
    std::size_t at = hash & mask;
    while (slots_[at].id >= 0) at = (at + 1) & mask;
    slots_[at] = {static_cast<std::int32_t>(id), static_cast<std::uint32_t>(hash >> 32)};
  }
}

std::int32_t TokenTable::find(std::string_view s) const {
  if (s.empty() || s.size() > longest_) return -1;
  const std::size_t mask = slots_.size() - 1;
  const std::size_t hash = std::hash<std::string_view>{}(s);
  for (std::size_t at = hash & mask; slots_[at].id >= 0; at = (at + 1) & mask) {
    const Slot slot = slots_[at];
    if (slot.tag == static_cast<std::uint32_t>(hash >> 32) &&
        strings_[static_cast<std::size_t>(slot.id)] == s) {
      return slot.id;
    }
  }
  return -1;
}

}  // namespace lathe
