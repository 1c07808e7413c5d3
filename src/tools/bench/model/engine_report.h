// What `lathe bench engine` measured, as tables and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/bench/median.h"
#include "tools/bench/model/engine_bench.h"
#include "tools/bench/model/engine_tests.h"
#include "tools/bench/model/step_floor.h"

namespace lathe {

struct EngineRow {
  EngineTest test;
  std::vector<double> rates;  // tokens/s of the repeats
  StepFloor floor;            // of a step, or of the prefill
  // Decoding on a GPU: seconds of each step besides waiting for it, and without a kernel before it.
  std::vector<double> host, idle;
  double shared = 0;  // share of the keys that was not read, as other requests' reads served

  double median() const { return lathe::median(rates); }
  // One step if it decodes, else the whole prefill.
  double seconds() const {
    return static_cast<double>((test.decodes ? 1 : test.tokens) * test.batch) / median();
  }
  double gbps() const { return floor.bytes / seconds() / 1e9; }
  double share() const { return floor.seconds / seconds(); }
};

/// read_gbps: GB/s at which a step's bytes are read, of the floors.
std::string engine_report(const std::vector<EngineRow>& rows, const std::vector<DraftGain>& gains,
                          Runtime& runtime, int repeats, double read_gbps);
/// `gains`: null without --draft-acceptance.
nlohmann::ordered_json engine_json(const std::vector<EngineRow>& rows,
                                   const std::vector<DraftGain>* gains, Runtime& runtime,
                                   double read_gbps);

}  // namespace lathe
