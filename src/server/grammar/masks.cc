#include "server/grammar/masks.h"

#include <algorithm>
#include <queue>
#include <unordered_set>
#include <utility>

namespace lathe::grammar {
namespace {

// Of the search for wide places: some 50 ms.
constexpr std::int64_t kMostSearchWork = 200'000;
constexpr std::int64_t kMostSearchPlaces = 4'000;
constexpr std::size_t kPlacesMeasured = 3;
// Tokens of up to so many bytes are looked at, the longest that this work
// allows. Those of a byte are always looked at: they let every text go on.
constexpr std::uint8_t kTokenLengths[] = {kLongestToken, 8, 4, 2, 1};

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

// Counts a place. Returns false if the visit has done too much.
bool Masks::spend(Place place) {
  if (met_.size() < static_cast<std::size_t>(walk_.places())) {
    met_.resize(2 * static_cast<std::size_t>(walk_.places()));
  }
  if (std::exchange(met_[place], visit_) != visit_) work_ += 1 + walk_.width(place);
  return work_ <= kMostMaskWork;
}

// Sets the bits of the tokens below a trie node that has led to `from`, of at
// most `longest` bytes. Null `exits`: `from` is not an inner place. Returns
// false if that is too much work.
bool Masks::visit(std::uint32_t top, Place from, std::uint8_t longest,
                  std::span<std::uint32_t> bits, std::vector<Exit>* exits) {
  const auto nodes = vocabulary_.nodes();
  const auto tokens = vocabulary_.tokens();
  path_[nodes[top].depth] = from;
  for (std::uint32_t i = top + 1; i < nodes[top].end;) {
    const Vocabulary::Node& node = nodes[i];
    if (node.depth > longest) {
      i = node.end;
      continue;
    }
    const Place to = walk_.step(path_[node.depth - 1u], node.byte);
    if (to == Walk::kNowhere) {
      i = node.end;
      continue;
    }
    if (!spend(to) && longest > 1) return false;
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

Masks::Entry Masks::make_entry(Place inner, std::size_t words) {
  for (const std::uint8_t longest : kTokenLengths) {
    ++visit_;
    work_ = 0;
    Entry entry{std::vector<std::uint32_t>(words), {}, longest};
    if (!visit(0, inner, longest, entry.bits, &entry.exits)) continue;
    std::sort(entry.exits.begin(), entry.exits.end(),
              [](const Exit& a, const Exit& b) { return a.place < b.place; });
    return entry;
  }
  return {};  // not reached: tokens of a byte are always visited
}

// Adds the tokens that leave the rules of the entry's place. Returns false if
// that is too much work.
bool Masks::visit_exits(const Entry& entry, Place place, std::uint8_t longest,
                        std::span<std::uint32_t> bits) {
  ++visit_;
  work_ = 0;
  Place left = Walk::kNowhere, outside = Walk::kNowhere;
  for (const Exit& exit : entry.exits) {
    if (exit.place != left) outside = walk_.outer(exit.place, place);
    left = exit.place;
    if (!walk_.goes_on(outside)) continue;
    if (!visit(exit.node, outside, longest, bits, nullptr)) return false;
  }
  return true;
}

void Masks::fill(Place place, std::span<std::uint32_t> bits, Next& out) {
  const std::lock_guard lock(mutex_);
  out.may_end = walk_.may_end(place);
  const Place inner = walk_.inner(place);
  auto at = entries_.find(inner);
  if (at == entries_.end()) {
    Entry entry = make_entry(inner, bits.size());
    entry_bytes_ += 4 * std::ssize(entry.bits) + 8 * std::ssize(entry.exits);
    at = entries_.emplace(inner, std::move(entry)).first;
  }
  for (const std::uint8_t longest : kTokenLengths) {
    if (longest > at->second.longest) continue;
    std::copy(at->second.bits.begin(), at->second.bits.end(), bits.begin());
    if (visit_exits(at->second, place, longest, bits)) break;
  }
  out.any = std::any_of(bits.begin(), bits.end(), [](std::uint32_t b) { return b != 0; });
}

bool Masks::any_at_start() {
  Next next;
  std::vector<std::uint32_t> bits(static_cast<std::size_t>((vocabulary_.size() + 31) / 32));
  fill(start(), bits, next);
  return next.any;
}

// The widest places within reach, widest first, of those that do not behave alike for the length of
// a token. The widest place met is followed next.
std::vector<Place> Masks::find_wide(const std::atomic<bool>* stop) {
  struct Found {
    std::int64_t width;
    Place place;
    bool operator<(const Found& other) const {
      return width != other.width ? width < other.width : place > other.place;
    }
  };
  std::priority_queue<Found> open;
  std::vector<Found> found;
  std::unordered_set<Place> met;
  const auto meet = [&](Place place) {
    if (!walk_.goes_on(place)) return;
    const Place inner = walk_.inner(place);
    if (!met.insert(inner).second) return;
    found.push_back({walk_.width(inner), place});
    open.push(found.back());
  };
  meet(walk_.start());
  std::int64_t work = 0;
  while (!open.empty() && work < kMostSearchWork && walk_.places() < kMostSearchPlaces) {
    if (stop != nullptr && *stop) break;
    const Found from = open.top();
    open.pop();
    Place last = Walk::kNowhere;
    for (int byte = 0; byte < 256; ++byte) {
      const Place to = walk_.step(from.place, static_cast<std::uint8_t>(byte));
      if (to == last || to == Walk::kNowhere) continue;
      last = to;
      work += 1 + walk_.width(to);
      meet(to);
    }
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return b < a; });
  std::vector<Place> out;
  for (const Found& f : found) {
    if (out.size() < kPlacesMeasured) out.push_back(f.place);
  }
  return out;
}

bool Masks::cost_too_much(const std::atomic<bool>* stop) {
  const std::lock_guard lock(mutex_);
  for (const Place place : find_wide(stop)) {
    const std::int64_t words = (vocabulary_.size() + 31) / 32;
    if (make_entry(walk_.inner(place), static_cast<std::size_t>(words)).longest < kLongestToken) {
      return true;
    }
  }
  return false;
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
