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
  workers.add(1, [&] {
    set(begun);
    go.wait(false);
  });
  begun.wait(false);
  for (const char name : {'a', 'b', 'c'}) workers.add(1, [&, name] { order += name; });
  for (const char name : {'x', 'y'}) workers.add(2, [&, name] { order += name; });
  workers.add(3, [&] { order += '3'; });
  workers.add(1, [&] { set(done); });
  set(go);
  done.wait(false);
  EXPECT_EQ(order, "ax3byc");
}

}  // namespace
}  // namespace lathe
