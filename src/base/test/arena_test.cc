#include "base/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace lathe {
namespace {

TEST(Arena, GivesAlignedPiecesThatDoNotOverlap) {
  Arena arena;
  const Arena::Scope scope(arena);
  const std::int64_t sizes[] = {1, 64, 65, 0, 1000, std::int64_t{3} << 20, 7};
  std::vector<std::pair<std::byte*, std::int64_t>> pieces;
  for (const std::int64_t n : sizes) {
    std::byte* p = arena.take(n);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 64, 0u);
    std::memset(p, static_cast<int>(pieces.size() + 1), static_cast<std::size_t>(n));
    pieces.emplace_back(p, n);
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (std::int64_t j = 0; j < pieces[i].second; ++j) {
      ASSERT_EQ(pieces[i].first[j], static_cast<std::byte>(i + 1));
    }
  }
}

TEST(Arena, ScopesGiveBackInStackOrder) {
  Arena arena;
  const Arena::Scope outer(arena);
  std::byte* kept = arena.take(100);
  std::byte* first = nullptr;
  {
    const Arena::Scope inner(arena);
    first = arena.take(100);
    arena.take(std::int64_t{5} << 20);  // needs another block
  }
  EXPECT_NE(first, kept);
  EXPECT_EQ(arena.take(50), first);
}

TEST(Arena, StopsGrowing) {
  Arena arena;
  const auto use = [&] {
    const Arena::Scope scope(arena);
    arena.take_array<float>(100'000);
    arena.take(std::int64_t{2} << 20);
    arena.take(std::int64_t{9} << 20);
    arena.take(10);
  };
  use();
  const std::int64_t growths = arena.growths();
  const std::int64_t capacity = arena.capacity();
  EXPECT_GE(capacity, std::int64_t{11} << 20);
  for (int i = 0; i < 5; ++i) use();
  EXPECT_EQ(arena.growths(), growths);
  EXPECT_EQ(arena.capacity(), capacity);
}

}  // namespace
}  // namespace lathe
