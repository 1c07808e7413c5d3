// A server's counters, gauges and histograms, and their text in Prometheus' format 0.0.4. They
// belong to the thread that serves HTTP.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/draft/draft_stats.h"
#include "engine/runner/runner.h"

namespace lathe {

class Histogram {
 public:
  /// Upper edges, ascending; the last bucket has none.
  explicit Histogram(std::span<const double> edges);
  void add(double value);

  const std::vector<double>& edges() const { return edges_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }  // [edges + 1]
  std::int64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> edges_;
  std::vector<std::int64_t> counts_;
  std::int64_t count_ = 0;
  double sum_ = 0;
  std::size_t last_ = 0;  // bucket of the last value: times between tokens are alike
};

/// One counter per combination of label values. Values come from closed sets, never from a request.
using Labelled = std::map<std::string, std::int64_t>;  // key such as `route="chat",status="200"`

struct Metrics {
  Metrics();

  std::int64_t prompt_tokens = 0;
  std::int64_t generation_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t reasoning_tokens = 0;
  std::int64_t ignored_fields = 0;
  std::int64_t preemptions = 0;
  std::int64_t lost_log_lines = 0;
  std::int64_t connection_failures = 0;
  DraftStats drafts;          // of the engine
  KeyReads key_reads;         // of the engine
  Labelled requests;          // route, finish
  Labelled aborted;           // why
  Labelled refused;           // code
  Labelled http_responses;    // route, status
  Labelled grammar_compiles;  // result

  // Gauges, set before the text is written.
  std::int64_t running = 0;
  std::int64_t queued = 0;
  std::int64_t queued_tokens = 0;
  std::int64_t open_streams = 0;
  std::int64_t connections = 0;
  std::int64_t used_tokens = 0;
  std::int64_t total_tokens = 0;
  std::int64_t page_size = 0;
  std::int64_t pages = 0;
  std::int64_t held_pages = 0;
  std::int64_t context_length = 0;
  double generation_rate = 0;  // tokens per second, over the last seconds
  double heartbeat_age = 0;    // seconds
  std::int64_t mailbox_steps = 0;
  std::string plan_labels;  // `prefill="...",decode="...",layout="..."`

  Histogram first_token_seconds;
  Histogram between_tokens_seconds;
  Histogram seconds_per_token;  // per output token of a request
  Histogram request_seconds;
  Histogram queue_seconds;
  Histogram prefill_step_seconds;
  Histogram decode_step_seconds;
  Histogram tokenize_seconds;
  Histogram prompt_lengths;
  Histogram answer_lengths;
};

/// Sets of metric names.
struct MetricNames {
  bool sglang = false;
  bool vllm = false;
  std::string model;  // label of theirs
};

/// Writes the lathe_ names always, other sets on request.
std::string metrics_text(const Metrics& metrics, const MetricNames& names);

}  // namespace lathe
