#include "server/grammar/masks.h"

#include <algorithm>
#include <utility>

namespace lathe::grammar {
namespace {

// Of the search for wide places: some 50 ms.
constexpr std::int64_t kMostSearchWork = 200'000;
constexpr std::int64_t kMostSearchPlaces = 4'000;
constexpr int kTexts = 8;
constexpr int kTextBytes = 500;
constexpr int kTries = 16;  // bytes that may not follow, before all are tried
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

Masks::Next Masks::at_start() {
  Next next;
  std::vector<std::uint32_t> bits(static_cast<std::size_t>((vocabulary_.size() + 31) / 32));
  fill(start(), bits, next);
  return next;
}

// The widest places that some texts come to, widest first. Each text takes one class of bytes after
// another, by chance but always the same, from a bounded number of steps.
std::vector<Place> Masks::find_wide(const std::atomic<bool>* stop) {
  const std::vector<std::uint8_t> bytes = walk_.byte_of_each_class();
  std::uint64_t chance = 1;
  const auto pick = [&] {  // as Knuth's MMIX
    chance = chance * 6364136223846793005u + 1442695040888963407u;
    return bytes[static_cast<std::size_t>(chance >> 33) % bytes.size()];
  };
  std::vector<Place> met;
  std::int64_t work = 0;
  const auto may_go_on = [&] {
    return work < kMostSearchWork && walk_.places() < kMostSearchPlaces &&
           (stop == nullptr || !*stop);
  };
  for (int text = 0; text < kTexts; ++text) {
    Place place = walk_.start();
    for (int i = 0; i < kTextBytes && walk_.goes_on(place) && may_go_on(); ++i) {
      met.push_back(place);
      Place to = Walk::kNowhere;
      for (int tries = 0; tries < kTries && to == Walk::kNowhere; ++tries) {
        to = walk_.step(place, pick());
        work += 1 + walk_.width(to);
      }
      for (int byte = 0; byte < 256 && to == Walk::kNowhere; ++byte) {
        to = walk_.step(place, static_cast<std::uint8_t>(byte));
      }
      place = to;
    }
  }
  std::sort(met.begin(), met.end());
  met.erase(std::unique(met.begin(), met.end()), met.end());
  std::stable_sort(met.begin(), met.end(),
                   [&](Place a, Place b) { return walk_.width(a) > walk_.width(b); });
  // Inside a character few tokens may follow.
  const auto is_between = [&](Place place) {
    for (std::uint8_t byte = ' '; byte < 127; ++byte) {
      if (walk_.step(place, byte) != Walk::kNowhere) return true;
    }
    return false;
  };
  std::vector<Place> out;
  for (std::size_t i = 0; i < met.size() && out.size() < kPlacesMeasured; ++i) {
    if (is_between(met[i])) out.push_back(met[i]);
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
