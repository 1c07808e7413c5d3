// Compiled alone: it includes the installed headers, which have a namespace lathe of their own.
#include "capi/status.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <thread>

namespace lathe::capi {
namespace {

TEST(CapiStatus, EveryErrorCodeHasOne) {
  const auto status = [](ErrorCode code) { return fail(Error{code, "f", "w", "o", "h"}); };
  EXPECT_EQ(status(ErrorCode::invalid_argument), LATHE_INVALID_ARGUMENT);
  EXPECT_EQ(status(ErrorCode::out_of_range), LATHE_INVALID_ARGUMENT);
  EXPECT_EQ(status(ErrorCode::malformed), LATHE_INVALID_ARGUMENT);
  EXPECT_EQ(status(ErrorCode::unsupported), LATHE_UNSUPPORTED);
  EXPECT_EQ(status(ErrorCode::exhausted), LATHE_OUT_OF_MEMORY);
  EXPECT_EQ(status(ErrorCode::io), LATHE_IO);
  EXPECT_EQ(status(ErrorCode::device), LATHE_DEVICE_ERROR);
  const lathe_error* e = lathe_last_error();
  EXPECT_EQ(e->status, LATHE_DEVICE_ERROR);
  EXPECT_EQ(std::string(e->text), "f: wanted w, got o; h");
}

TEST(CapiStatus, NoExceptionLeavesAGuard) {
  EXPECT_EQ(guard([]() -> Result<void> { throw std::bad_alloc(); }), LATHE_OUT_OF_MEMORY);
  EXPECT_EQ(guard([]() -> Result<void> {
              throw OutOfMemory({ErrorCode::exhausted, "arena", "9 bytes", "8", ""});
            }),
            LATHE_OUT_OF_MEMORY);
  EXPECT_STREQ(lathe_last_error()->offered, "arena: wanted 9 bytes, got 8");
  EXPECT_EQ(guard([]() -> Result<void> { throw Aborted(); }), LATHE_ABORTED);
  EXPECT_EQ(guard([]() -> Result<void> { throw std::runtime_error("odd"); }), LATHE_INTERNAL);
  EXPECT_STREQ(lathe_last_error()->offered, "odd");
  EXPECT_EQ(guard([]() -> lathe_status { throw 7; }), LATHE_INTERNAL);
  EXPECT_EQ(guard([]() -> Result<void> { return {}; }), LATHE_OK);
}

TEST(CapiStatus, ErrorsAreOfTheirThread) {
  fail(Error{ErrorCode::io, "mine", "", "", ""});
  std::thread([] {
    EXPECT_EQ(lathe_last_error(), nullptr);
    fail(Error{ErrorCode::device, "its", "", "", ""});
  }).join();
  EXPECT_STREQ(lathe_last_error()->field, "mine");
}

}  // namespace
}  // namespace lathe::capi
