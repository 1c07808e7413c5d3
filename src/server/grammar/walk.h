// Walk: where an automaton may stand after some bytes. Places are made when they are first reached,
// numbered, and remembered with what each byte leads to, so most steps are a look-up.
//
// A place is a set of items: a state, and what is to follow once its rule ends. That is a frame: a
// set of states to return to, each with a frame of its own. Frames with equal contents are one, so
// what was read before does not tell places apart if the same may follow.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "server/grammar/automaton.h"

namespace lathe::grammar {

using Place = std::uint32_t;

class Walk {
 public:
  static constexpr Place kNowhere = 0;  // no text goes on like this

  /// The automaton outlives it.
  explicit Walk(const Automaton& automaton);

  Place start() const { return start_; }
  Place step(Place place, std::uint8_t byte) {
    const std::int32_t known = next_[std::size_t{place} * 256 + byte];
    return known >= 0 ? static_cast<Place>(known) : find_step(place, byte);
  }
  /// Whether the text may end there.
  bool may_end(Place place) const { return places_[place].key.may_end; }
  /// Whether any byte may follow.
  bool goes_on(Place place) const { return !places_[place].key.items.empty(); }

  /// The place without what follows the rules that it is in, which become holes, and with aliases
  /// of its states: what places share that lead to the same for the length of a token.
  Place inner(Place place);
  /// Whether the text may leave the rules of an inner place here.
  bool leaves(Place place) const { return !places_[place].key.left.empty(); }
  /// Of a place that an inner one has led to and that leaves(): where the text is, seen from the
  /// place that the inner one was made of.
  Place outer(Place place, Place inner_of);

  /// Items that were looked at to make places, so far; and bytes held.
  std::int64_t work() const { return work_; }
  std::int64_t bytes() const { return bytes_; }
  /// The place of another walk of the same automaton, here.
  Place bring(const Walk& from, Place place);

 private:
  using Frame = std::uint32_t;
  static constexpr Frame kEnd = 0;  // of the root: the text ends
  struct Item {
    State state;
    Frame frame;
    auto operator<=>(const Item&) const = default;
  };
  // Frames that it names are older, so have lower numbers.
  struct FrameData {
    std::vector<Item> returns;  // ascending; empty: a hole, or kEnd
    std::int32_t hole = -1;     // its number
    bool operator==(const FrameData&) const = default;
  };
  struct PlaceKey {
    std::vector<Item> items;  // that take bytes, ascending
    std::vector<Frame> left;  // holes at the end of whose rule the text is, ascending
    bool may_end = false;
    bool operator==(const PlaceKey&) const = default;
  };
  struct PlaceData {
    PlaceKey key;
    Place inner = kNowhere;    // once it is known
    std::vector<Frame> holes;  // what each hole of `inner` stands for
  };
  struct Pending {
    std::uint32_t order;
    Rule rule;
    Item back;
  };
  // Items that close() has met.
  class Seen {
   public:
    void clear();
    bool add(Item item);  // false: it was there

   private:
    static std::size_t slot_of(std::uint64_t key, std::size_t slots);
    std::vector<std::uint64_t> keys_;
    std::vector<std::uint32_t> rounds_;  // a slot of an older one is free
    std::uint32_t round_ = 0;
    std::size_t count_ = 0;
  };

  Place find_step(Place place, std::uint8_t byte);
  Place close();
  void follow_all();
  Place intern(PlaceKey key);
  Frame intern(FrameData frame);
  Frame hole(std::size_t number);

  const Automaton& automaton_;
  std::vector<PlaceData> places_;
  std::vector<std::int32_t> next_;  // [places, 256] a place; -1: not known
  std::vector<FrameData> frames_;
  std::unordered_multimap<std::uint64_t, Place> place_of_;  // by hash
  std::unordered_multimap<std::uint64_t, Frame> frame_of_;
  Place start_ = kNowhere;
  std::int64_t work_ = 0;
  std::int64_t bytes_ = 0;

  // Of close(), kept for their memory. todo_ is its argument.
  std::vector<Item> todo_;
  std::vector<Pending> pending_;  // a heap, the least order first
  Seen seen_;
  PlaceKey made_;
};

}  // namespace lathe::grammar
