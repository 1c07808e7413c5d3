#include "server/grammar/walk.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lathe::grammar {
namespace {

constexpr std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

constexpr auto later = [](const auto& a, const auto& b) { return a.order > b.order; };

template <class T>
void sort_unique(std::vector<T>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

}  // namespace

void Walk::Seen::clear() {
  if (keys_.empty()) keys_.resize(64), rounds_.resize(64);
  ++round_;
  count_ = 0;
}

std::size_t Walk::Seen::slot_of(std::uint64_t key, std::size_t slots) {
  return mix(0, key) & (slots - 1);
}

bool Walk::Seen::add(Item item) {
  const std::uint64_t key = std::uint64_t{item.state} << 32 | item.frame;
  std::size_t at = slot_of(key, keys_.size());
  for (; rounds_[at] == round_; at = (at + 1) & (keys_.size() - 1)) {
    if (keys_[at] == key) return false;
  }
  keys_[at] = key;
  rounds_[at] = round_;
  if (++count_ * 2 <= keys_.size()) return true;
  std::vector<std::uint64_t> old_keys(keys_.size() * 2);
  std::vector<std::uint32_t> old_rounds(keys_.size() * 2);
  std::swap(old_keys, keys_);
  std::swap(old_rounds, rounds_);
  for (std::size_t i = 0; i < old_keys.size(); ++i) {
    if (old_rounds[i] != round_) continue;
    at = slot_of(old_keys[i], keys_.size());
    while (rounds_[at] == round_) at = (at + 1) & (keys_.size() - 1);
    keys_[at] = old_keys[i];
    rounds_[at] = round_;
  }
  return true;
}

Walk::Walk(const Automaton& automaton) : automaton_(automaton) {
  frames_.emplace_back();  // kEnd
  intern(PlaceKey{});      // kNowhere
  std::fill(next_.begin(), next_.end(), static_cast<std::int32_t>(kNowhere));
  todo_ = {{automaton_.start(Automaton::kRoot), kEnd}};
  start_ = close();
}

std::vector<std::uint8_t> Walk::byte_of_each_class() const {
  std::vector<std::uint8_t> out = {0};
  for (int byte = 1; byte < 256; ++byte) {
    const auto b = static_cast<std::uint8_t>(byte);
    if (automaton_.byte_class(b) != automaton_.byte_class(out.back())) out.push_back(b);
  }
  return out;
}

Place Walk::find_step(Place place, std::uint8_t byte) {
  todo_.clear();
  for (const Item& item : places_[place].key.items) {
    for (const ByteEdge& e : automaton_.bytes(item.state)) {
      if (e.first <= byte && byte <= e.last) todo_.push_back({e.to, item.frame});
    }
  }
  const Place to = todo_.empty() ? kNowhere : close();
  for (std::size_t b = 0; b < 256; ++b) {
    if (automaton_.byte_class(static_cast<std::uint8_t>(b)) != automaton_.byte_class(byte))
      continue;
    next_[std::size_t{place} * 256 + b] = static_cast<std::int32_t>(to);
  }
  return to;
}

// The closure of todo_ over edges that consume no byte. Rules that end return to their callers
// first. Then rules are called in topological order, so that all callers of a rule at this place
// are known and share one frame. A rule consumes at least a byte, so none that is called here ends
// here.
Place Walk::close() {
  made_ = {};
  seen_.clear();
  pending_.clear();
  follow_all();
  while (!pending_.empty()) {
    const Rule rule = pending_.front().rule;
    FrameData frame;
    while (!pending_.empty() && pending_.front().rule == rule) {
      frame.returns.push_back(pending_.front().back);
      std::pop_heap(pending_.begin(), pending_.end(), later);
      pending_.pop_back();
    }
    sort_unique(frame.returns);
    todo_.push_back({automaton_.start(rule), intern(std::move(frame))});
    follow_all();
  }
  sort_unique(made_.items);
  sort_unique(made_.left);
  return intern(std::move(made_));
}

void Walk::follow_all() {
  while (!todo_.empty()) {
    const Item item = todo_.back();
    todo_.pop_back();
    if (!seen_.add(item)) continue;
    if (automaton_.is_end(item.state)) {
      const FrameData& frame = frames_[item.frame];
      if (item.frame == kEnd) {
        made_.may_end = true;
      } else if (frame.hole >= 0) {
        made_.left.push_back(item.frame);
      } else {
        todo_.insert(todo_.end(), frame.returns.begin(), frame.returns.end());
      }
    }
    for (const State to : automaton_.skips(item.state)) todo_.push_back({to, item.frame});
    for (const CallEdge& c : automaton_.calls(item.state)) {
      pending_.push_back({automaton_.order(c.rule), c.rule, {c.to, item.frame}});
      std::push_heap(pending_.begin(), pending_.end(), later);
    }
    if (!automaton_.bytes(item.state).empty()) made_.items.push_back(item);
  }
}

Place Walk::intern(PlaceKey key) {
  std::uint64_t h = key.may_end ? 1 : 0;
  for (const Item& i : key.items) h = mix(h, std::uint64_t{i.state} << 32 | i.frame);
  for (const Frame f : key.left) h = mix(h, ~std::uint64_t{f});
  const auto [first, last] = place_of_.equal_range(h);
  for (auto it = first; it != last; ++it) {
    if (places_[it->second].key == key) return it->second;
  }
  const auto out = static_cast<Place>(places_.size());
  bytes_ += 1200 + 8 * std::ssize(key.items);
  places_.push_back({std::move(key), kNowhere, {}});
  next_.resize(next_.size() + 256, -1);
  place_of_.emplace(h, out);
  return out;
}

Walk::Frame Walk::intern(FrameData frame) {
  std::uint64_t h = static_cast<std::uint64_t>(frame.hole);
  for (const Item& i : frame.returns) h = mix(h, std::uint64_t{i.state} << 32 | i.frame);
  const auto [first, last] = frame_of_.equal_range(h);
  for (auto it = first; it != last; ++it) {
    if (frames_[it->second] == frame) return it->second;
  }
  const auto out = static_cast<Frame>(frames_.size());
  bytes_ += 100 + 8 * std::ssize(frame.returns);
  frames_.push_back(std::move(frame));
  frame_of_.emplace(h, out);
  return out;
}

Walk::Frame Walk::hole(std::size_t number) {
  return intern(FrameData{{}, static_cast<std::int32_t>(number)});
}

// Keep a frame if every frame it leads to also belongs to an item: the text may return into it
// without leaving the rules seen here.
Place Walk::inner(Place place) {
  if (places_[place].inner != kNowhere) return places_[place].inner;
  PlaceKey key;
  key.items = places_[place].key.items;
  std::vector<Frame> frames;
  for (Item& i : key.items) {
    frames.push_back(i.frame);
    i.state = automaton_.alias(i.state);
  }
  sort_unique(frames);
  const auto is_seen = [&](Frame f) {
    return f == kEnd || std::binary_search(frames.begin(), frames.end(), f);
  };
  std::vector<Frame> holes;
  std::unordered_map<Frame, Frame> made = {{kEnd, kEnd}};
  for (const Frame f : frames) {  // frames are numbered after those they lead to
    if (f == kEnd) continue;
    FrameData data = frames_[f];
    const bool stays = std::all_of(data.returns.begin(), data.returns.end(),
                                   [&](const Item& r) { return is_seen(r.frame); });
    if (stays) {
      for (Item& r : data.returns) r.frame = made.at(r.frame);
      sort_unique(data.returns);
      made[f] = intern(std::move(data));
    } else {
      made[f] = hole(holes.size());
      holes.push_back(f);
    }
  }
  for (Item& i : key.items) i.frame = made.at(i.frame);
  sort_unique(key.items);
  const Place out = intern(std::move(key));
  places_[place].inner = out;
  places_[place].holes = std::move(holes);
  return out;
}

Place Walk::outer(Place place, Place inner_of) {
  todo_.clear();
  for (const Frame f : places_[place].key.left) {
    const auto number = static_cast<std::size_t>(frames_[f].hole);
    const FrameData& frame = frames_[places_[inner_of].holes[number]];
    todo_.insert(todo_.end(), frame.returns.begin(), frame.returns.end());
  }
  return close();
}

Place Walk::bring(const Walk& from, Place place) {
  PlaceKey key = from.places_[place].key;
  // All frames reachable from the place's, oldest first.
  std::vector<Frame> todo, frames;
  std::vector<bool> met(from.frames_.size());
  const auto meet = [&](Frame f) {
    if (!met[f]) todo.push_back(f);
    met[f] = true;
  };
  for (const Item& i : key.items) meet(i.frame);
  while (!todo.empty()) {
    frames.push_back(todo.back());
    todo.pop_back();
    for (const Item& r : from.frames_[frames.back()].returns) meet(r.frame);
  }
  std::sort(frames.begin(), frames.end());
  std::unordered_map<Frame, Frame> made = {{kEnd, kEnd}};
  for (const Frame f : frames) {
    if (f == kEnd) continue;
    FrameData data = from.frames_[f];
    for (Item& r : data.returns) r.frame = made.at(r.frame);
    sort_unique(data.returns);
    made[f] = intern(std::move(data));
  }
  for (Item& i : key.items) i.frame = made.at(i.frame);
  sort_unique(key.items);
  return intern(std::move(key));
}

}  // namespace lathe::grammar
