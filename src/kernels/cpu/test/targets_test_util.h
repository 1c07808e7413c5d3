// A test on every SIMD target.
#pragma once

#include "layout/simd_targets.h"

#include <gtest/gtest.h>

#include "hwy/targets.h"

namespace lathe::cpu_test {

/// Runs `test` once per SIMD target that this machine and build have.
template <class Test>
void on_every_target(Test test) {
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    test();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace lathe::cpu_test
