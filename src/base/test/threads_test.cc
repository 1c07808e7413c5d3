#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "base/execution.h"

namespace lathe {
namespace {

TEST(ThreadPool, EveryTaskRunsOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (std::int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> ran(static_cast<std::size_t>(tasks));
      std::atomic<bool> bad_worker{false};
      pool.run(tasks, [&](std::int64_t t, int worker) {
        ran[static_cast<std::size_t>(t)]++;
        if (worker < 0 || worker >= threads) bad_worker = true;
      });
      for (auto& n : ran) EXPECT_EQ(n, 1);
      EXPECT_FALSE(bad_worker);
    }
  }
}

// Many short loops in succession: no task of one may run in the next.
TEST(ThreadPool, ManyShortLoops) {
  ThreadPool pool(3);
  for (int round = 0; round < 5000; ++round) {
    std::atomic<int> sum{0};
    pool.run(4, [&](std::int64_t t, int) { sum += static_cast<int>(t) + round; });
    ASSERT_EQ(sum, 6 + 4 * round);
  }
}

// After a task throws, data that other tasks use must live until they return.
TEST(ThreadPool, ThrowsWhatATaskThrew) {
  ThreadPool pool(4);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> returned{0};
    EXPECT_THROW(pool.run(64,
                          [&](std::int64_t t, int) {
                            if (t % 16 == 3) throw std::runtime_error("a task");
                            ++returned;
                          }),
                 std::runtime_error);
    EXPECT_EQ(returned, 60);
  }
  std::atomic<int> sum{0};
  pool.run(8, [&](std::int64_t, int) { ++sum; });
  EXPECT_EQ(sum, 8);
}

TEST(ThreadPool, DefaultIsAtLeastOne) { EXPECT_GE(ThreadPool().threads(), 1); }

TEST(Scratch, GrowsOnceAndStays) {
  Scratch s;
  std::byte* a = s.take(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(s.take(10), a);
  EXPECT_EQ(s.growths(), 1);
  s.take(2000);
  EXPECT_EQ(s.growths(), 2);
  EXPECT_EQ(s.size(), 2000);
}

int living = 0;
std::int64_t room = 0;  // the largest allocation that succeeds, bytes
Result<OwnedBytes> allocate_counted(std::int64_t bytes) {
  if (bytes > room) return Error{ErrorCode::exhausted, "memory", "more", "less", ""};
  ++living;
  return OwnedBytes(new std::byte[static_cast<std::size_t>(bytes)], [](std::byte* p) {
    --living;
    delete[] p;
  });
}
constexpr Memory kKeeping{MemoryKind::device, allocate_counted};

// A captured CUDA graph contains the address of its scratch, so that memory must stay.
TEST(Scratch, KeepsWhatItHasOutgrown) {
  room = 3500;
  {
    Scratch s(kKeeping);
    std::byte* first = s.take(1000);
    first[999] = std::byte{7};
    EXPECT_NE(s.take(1001), first);
    EXPECT_EQ(s.size(), 2000);
    EXPECT_EQ(living, 2);
    EXPECT_EQ(first[999], std::byte{7});
    std::byte* third = s.take(2001);  // twice as much does not fit
    EXPECT_EQ(s.size(), 2001);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(s.take(4000), nullptr);
      EXPECT_EQ(s.take(100), third);
    }
    EXPECT_EQ(living, 3);
  }
  EXPECT_EQ(living, 0);
}

}  // namespace
}  // namespace lathe
