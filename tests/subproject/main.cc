#include <cstdio>

#include "base/float_formats.h"

int main() {
  int warned_about_at_home_only = 0.5;  // -Wconversion
  return lathe::to_f32(lathe::to_bf16(1.0f)) == 1.0f ? warned_about_at_home_only : 1;
}
