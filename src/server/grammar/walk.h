// Walk: the states of an automaton after some bytes. Places are created and numbered when first
// reached and cached with their successors by byte, so most steps are a look-up.
//
// A place is a set of items. An item is a state and a frame: the states to return to once its rule
// ends, each with a frame of its own. Equal frames are shared, so places are equal if the same may
// follow, whatever was read before.
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
  static constexpr Place kNowhere = 0;  // no allowed text begins like this

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

  /// The place with aliases of its states, and with holes for what follows its rules. Places with
  /// the same inner place behave alike for the length of a token.
  Place inner(Place place);
  /// Whether the text may leave the rules of the inner place that led here.
  bool leaves(Place place) const { return !places_[place].key.left.empty(); }
  /// For a place that leaves(), reached from inner(inner_of): where the text continues after those
  /// rules, resolved in `inner_of`.
  Place outer(Place place, Place inner_of);

  /// A byte of each class that the automaton tells apart.
  std::vector<std::uint8_t> byte_of_each_class() const;
  /// States that the place is in at once.
  std::int64_t width(Place place) const { return std::ssize(places_[place].key.items); }
  std::int64_t places() const { return std::ssize(places_); }
  /// Bytes held.
  std::int64_t bytes() const { return bytes_; }
  /// Translates a place of another walk of the same automaton.
  Place bring(const Walk& from, Place place);

 private:
  using Frame = std::uint32_t;
  static constexpr Frame kEnd = 0;  // returns from the root: the text ends
  struct Item {
    State state;
    Frame frame;
    auto operator<=>(const Item&) const = default;
  };
  // Refers to older frames only, which have lower numbers.
  struct FrameData {
    std::vector<Item> returns;  // ascending; empty: a hole, or kEnd
    std::int32_t hole = -1;     // its number
    bool operator==(const FrameData&) const = default;
  };
  struct PlaceKey {
    std::vector<Item> items;  // with edges that consume bytes, ascending
    std::vector<Frame> left;  // holes returned to, ascending
    bool may_end = false;
    bool operator==(const PlaceKey&) const = default;
  };
  struct PlaceData {
    PlaceKey key;
    Place inner = kNowhere;    // cached by inner()
    std::vector<Frame> holes;  // [holes of `inner`] the frame of each
  };
  struct Pending {
    std::uint32_t order;
    Rule rule;
    Item back;
  };
  // Items that close() has visited.
  class Seen {
   public:
    void clear();
    bool add(Item item);  // false: already present

   private:
    static std::size_t slot_of(std::uint64_t key, std::size_t slots);
    std::vector<std::uint64_t> keys_;
    std::vector<std::uint32_t> rounds_;  // slots of older rounds are free
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
  std::int64_t bytes_ = 0;

  // close()'s scratch memory. todo_ is its argument.
  std::vector<Item> todo_;
  std::vector<Pending> pending_;  // a heap, the least order first
  Seen seen_;
  PlaceKey made_;
};

}  // namespace lathe::grammar
