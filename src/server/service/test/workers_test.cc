#include "server/service/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

namespace lathe {
namespace {

// A client with many slow jobs must not keep another's short one waiting behind all of them.
TEST(Workers, ClientsTakeTurns) {
  std::string order;
  std::atomic<bool> begun = false, go = false, done = false;
  const auto set = [](std::atomic<bool>& flag) {
    flag = true;
    flag.notify_all();
  };
  Workers workers(1);
  workers.add(1, false, [&] {
    set(begun);
    go.wait(false);
  });
  begun.wait(false);
  for (const char name : {'a', 'b', 'c'}) workers.add(1, false, [&, name] { order += name; });
  for (const char name : {'x', 'y'}) workers.add(2, false, [&, name] { order += name; });
  workers.add(3, false, [&] { order += '3'; });
  workers.add(1, false, [&] { set(done); });
  set(go);
  done.wait(false);
  EXPECT_EQ(order, "ax3byc");
}

// Two long jobs of one client must not hold both workers while another client's short one waits.
TEST(Workers, LongJobsLeaveAThread) {
  std::atomic<int> running = 0;
  std::atomic<bool> go = false, done = false;
  Workers workers(2);
  for (int i = 0; i < 3; ++i) {
    workers.add(1, true, [&] {
      EXPECT_EQ(++running, 1);
      go.wait(false);
      --running;
    });
  }
  workers.add(2, false, [&] {
    done = true;
    done.notify_all();
  });
  done.wait(false);
  go = true;
  go.notify_all();
  std::atomic<bool> last = false;
  workers.add(1, true, [&] {
    last = true;
    last.notify_all();
  });
  last.wait(false);
}

// With one thread, long jobs run, too.
TEST(Workers, OneThreadRunsLongJobs) {
  std::atomic<bool> done = false;
  Workers workers(1);
  workers.add(1, true, [&] {
    done = true;
    done.notify_all();
  });
  done.wait(false);
}

}  // namespace
}  // namespace lathe
