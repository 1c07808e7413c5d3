#include "attn/delta_rule.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace lathe {
namespace {

Error wrong(std::string field, std::string wanted, std::int64_t offered) {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted),
          fmt::format("{}", offered), ""};
}

}  // namespace

Result<void> check_delta_rule(const DeltaRuleProblem& p) {
  if (p.heads < 1) return wrong("heads", "at least 1", p.heads);
  if (p.key_heads < 1 || p.heads % p.key_heads != 0) {
    return wrong("key_heads", fmt::format("a divisor of {} value heads", p.heads), p.key_heads);
  }
  if (p.dk < 16 || p.dk % 16 != 0) return wrong("dk", "a multiple of 16", p.dk);
  if (p.dv < 16 || p.dv % 16 != 0) return wrong("dv", "a multiple of 16", p.dv);
  if (p.conv < 1 || p.conv > 8) return wrong("conv", "1 to 8 taps", p.conv);
  if (p.decay == DeltaDecay::per_channel && p.key_heads != p.heads) {
    return wrong("key_heads",
                 fmt::format("{}: a gate per channel needs one per value head", p.heads),
                 p.key_heads);
  }
  if (p.gate == DeltaGate::bounded && !(p.gate_bound < 0)) {
    return Error{ErrorCode::invalid_argument, "gate_bound", "below 0",
                 fmt::format("{}", p.gate_bound), ""};
  }
  return {};
}

}  // namespace lathe
