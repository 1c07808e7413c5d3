// Definitions of the opaque structs of lathe.h.
#pragma once

#include <lathe/lathe.h>

#include <array>
#include <string>
#include <vector>

#include "attn/machine.h"
#include "attn/phase.h"
#include "layout/layout.h"
#include "plan/plan.h"

struct lathe_layout {
  explicit lathe_layout(const lathe::CacheLayout& l) : value(l), text(l.serialize()) {}
  lathe::CacheLayout value;
  std::string text;
};

struct lathe_machine {
  lathe::Machine value;
  std::string json;
};

struct lathe_plan {
  lathe::Plan value;
  std::string json;
  std::string text;
  std::array<std::string, lathe::enum_count<lathe::Phase>> routes;  // JSON
};
