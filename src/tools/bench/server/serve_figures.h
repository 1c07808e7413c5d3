// The figures of lathe bench serve, under the names of vLLM's `bench serve`.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/bench/server/serve_client.h"
#include "tools/bench/server/serve_prompts.h"

namespace lathe {

/// Limits in milliseconds that an answer must keep to count as good.
struct ServeLimits {
  std::optional<double> ttft, tpot, e2el;
  /// From "ttft:200,tpot:50,e2el:2000". Errors: --goodput.
  static Result<ServeLimits> parse(const std::string& text);
  bool any() const { return ttft || tpot || e2el; }
};

/// Of values in milliseconds; percentiles are interpolated as numpy's.
struct TimeSpread {
  explicit TimeSpread(std::vector<double> values);
  double mean = 0, std = 0, p50 = 0, p90 = 0, p99 = 0;
  std::vector<double> sorted;
};

struct ServeFigures {
  ServeFigures(const std::vector<ServeRecord>& records, const ServeLoad& load,
               const ServeLimits& limits);

  double duration = 0;  // [s] from the first request to the last answer
  std::int64_t completed = 0, failed = 0;
  std::int64_t input_tokens = 0, output_tokens = 0;
  std::int64_t good = 0;                       // completed, within the limits
  std::int64_t most_open = 0;                  // requests at once
  std::vector<std::int64_t> tokens_in_second;  // of the answers
  std::int64_t marked = 0, right = 0;          // answers to tasks
  // Time to the first token; per output token after it; between parts; to the end.
  TimeSpread ttft, tpot, itl, e2el;

  double per_second(std::int64_t n) const {
    return duration > 0 ? static_cast<double>(n) / duration : 0;
  }
};

/// vLLM's names. `detailed`: also what became of each request.
nlohmann::ordered_json figures_json(const ServeFigures& figures, const ServeLimits& limits,
                                    const std::vector<ServeRecord>& records, bool detailed);
std::string figures_text(const ServeFigures& figures, const ServeLimits& limits);

}  // namespace lathe
