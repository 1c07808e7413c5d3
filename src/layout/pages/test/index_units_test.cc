#include "layout/pages/index_units.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "layout/layout.h"
#include "layout/pages/pool_view.h"

namespace lathe {
namespace {

template <class A, class B>
constexpr bool kMixes = std::is_convertible_v<A, B> || std::is_assignable_v<B&, A> ||
                        std::is_constructible_v<B, A> || requires(A a, B b) {
  a == b;
}
|| requires(A a, B b) { a < b; }
|| requires(A a, B b) { a + b; }
|| requires(A a, B b) { a - b; };

// No conversions between any two of the four units, nor implicit ones to or from integers.
static_assert(!kMixes<Slot, PageId> && !kMixes<PageId, Slot>);
static_assert(!kMixes<Slot, LocalPos> && !kMixes<LocalPos, Slot>);
static_assert(!kMixes<Slot, RaggedRow> && !kMixes<RaggedRow, Slot>);
static_assert(!kMixes<PageId, LocalPos> && !kMixes<LocalPos, PageId>);
static_assert(!kMixes<PageId, RaggedRow> && !kMixes<RaggedRow, PageId>);
static_assert(!kMixes<LocalPos, RaggedRow> && !kMixes<RaggedRow, LocalPos>);

template <class U>
constexpr bool kApartFromInts =
    !std::is_convertible_v<int, U> && !std::is_convertible_v<U, int> &&
    !std::is_assignable_v<U&, int> && !std::is_assignable_v<int&, U> && !requires(U u) {
  u == 1;
}
&&!requires(U u) { u + 1; };
static_assert(kApartFromInts<Slot> && kApartFromInts<PageId> && kApartFromInts<LocalPos> &&
              kApartFromInts<RaggedRow>);

// Functions for one unit reject the others and plain integers. The first check of each line shows
// that the expression is valid for the right unit.
template <class T>
constexpr bool kTakenBySlotOf = requires(T t) {
  slot_of(t, 64, 0);
};
static_assert(kTakenBySlotOf<PageId> && !kTakenBySlotOf<Slot> && !kTakenBySlotOf<LocalPos> &&
              !kTakenBySlotOf<RaggedRow> && !kTakenBySlotOf<int>);
template <class T>
constexpr bool kTakenByPageOf = requires(T t) {
  page_of(t, 64);
};
static_assert(kTakenByPageOf<Slot> && !kTakenByPageOf<PageId> && !kTakenByPageOf<LocalPos> &&
              !kTakenByPageOf<RaggedRow> && !kTakenByPageOf<int>);
template <class T>
constexpr bool kTakenByAt = requires(PoolView v, const Part& p, T t) {
  v.at(p, t);
};
static_assert(kTakenByAt<Slot> && !kTakenByAt<PageId> && !kTakenByAt<LocalPos> &&
              !kTakenByAt<RaggedRow> && !kTakenByAt<int>);

TEST(IndexUnits, SlotIsPageTimesSizePlusOffset) {
  EXPECT_EQ(slot_of(PageId(3), 64, 5), Slot(197));
  EXPECT_EQ(page_of(Slot(197), 64), PageId(3));
  EXPECT_EQ(offset_in_page(Slot(197), 64), 5);
  EXPECT_TRUE(Slot().is_hole());
  EXPECT_FALSE(Slot(0).is_hole());
  EXPECT_FALSE(Slot(-2).is_hole());
}

}  // namespace
}  // namespace lathe
