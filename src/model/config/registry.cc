#include "model/config/registry.h"

#include <array>

#include "model/config/text_tower.h"

namespace lathe {
namespace {

constexpr std::array kArchitectures = {
#define LATHE_ARCHITECTURE(function, text, ...) \
  Architecture{.name = text, .parse = parse_##function __VA_OPT__(, ) __VA_ARGS__},
#include "model/config/architectures.inc"
#undef LATHE_ARCHITECTURE
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& a : kArchitectures) {
    if (a.name == name) return &a;
  }
  return nullptr;
}

std::vector<std::string> known_architectures() {
  std::vector<std::string> out;
  for (const Architecture& a : kArchitectures) out.emplace_back(a.name);
  for (const TextTower& tower : text_towers()) out.emplace_back(tower.name);
  return out;
}

}  // namespace lathe
