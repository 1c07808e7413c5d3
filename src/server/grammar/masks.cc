#include "server/grammar/masks.h"

#include <algorithm>

namespace lathe::grammar {
namespace {

// Items that one call may visit, which takes some milliseconds. Schemas need thousands.
constexpr std::int64_t kMostWork = 100'000;

}  // namespace

Place Masks::step(Place place, std::int32_t token) {
  if (token < 0 || token >= vocabulary_.size() || vocabulary_.text(token).empty()) {
    return Walk::kNowhere;
  }
  const std::lock_guard lock(mutex_);
  for (const char c : vocabulary_.text(token)) {
    place = walk_.step(place, static_cast<std::uint8_t>(c));
    if (place == Walk::kNowhere) break;
  }
  return place;
}

// Sets the bits of the tokens below a trie node that has led to `from`. Null `exits`: `from` is not
// an inner place.
bool Masks::visit(std::uint32_t top, Place from, std::span<std::uint32_t> bits,
                  std::vector<Exit>* exits) {
  const auto nodes = vocabulary_.nodes();
  const auto tokens = vocabulary_.tokens();
  path_[nodes[top].depth] = from;
  for (std::uint32_t i = top + 1; i < nodes[top].end;) {
    const Vocabulary::Node& node = nodes[i];
    const Place to = walk_.step(path_[node.depth - 1u], node.byte);
    if (to == Walk::kNowhere) {
      i = node.end;
      continue;
    }
    if (walk_.work() > work_end_) return false;
    for (std::uint32_t t = node.first_token; t < nodes[i + 1].first_token; ++t) {
      const auto token = static_cast<std::uint32_t>(tokens[t]);
      bits[token / 32] |= std::uint32_t{1} << (token % 32);
    }
    path_[node.depth] = to;
    if (exits != nullptr && walk_.leaves(to) && node.end > i + 1) exits->push_back({i, to});
    i = walk_.goes_on(to) ? i + 1 : node.end;
  }
  return true;
}

bool Masks::fill(Place place, std::span<std::uint32_t> bits, Next& out) {
  const std::lock_guard lock(mutex_);
  work_end_ = walk_.work() + kMostWork;
  out.may_end = walk_.may_end(place);
  const Place inner = walk_.inner(place);
  auto at = entries_.find(inner);
  if (at == entries_.end()) {
    Entry entry;
    entry.bits.resize(bits.size());
    if (!visit(0, inner, entry.bits, &entry.exits)) return false;
    std::sort(entry.exits.begin(), entry.exits.end(),
              [](const Exit& a, const Exit& b) { return a.place < b.place; });
    entry_bytes_ += 4 * std::ssize(entry.bits) + 8 * std::ssize(entry.exits);
    at = entries_.emplace(inner, std::move(entry)).first;
  }
  std::copy(at->second.bits.begin(), at->second.bits.end(), bits.begin());
  Place left = Walk::kNowhere, outside = Walk::kNowhere;
  for (const Exit& exit : at->second.exits) {
    if (exit.place != left) outside = walk_.outer(exit.place, place);
    left = exit.place;
    if (walk_.goes_on(outside) && !visit(exit.node, outside, bits, nullptr)) return false;
  }
  out.any = std::any_of(bits.begin(), bits.end(), [](std::uint32_t b) { return b != 0; });
  return true;
}

std::int64_t Masks::bytes() const {
  const std::lock_guard lock(mutex_);
  return walk_.bytes() + entry_bytes_;
}

Place Masks::bring(const Masks& from, Place place) {
  const std::scoped_lock lock(mutex_, from.mutex_);
  return walk_.bring(from.walk_, place);
}

}  // namespace lathe::grammar
