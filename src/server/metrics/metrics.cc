#include "server/metrics/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace lathe {
namespace {

// SGLang's edges.
constexpr double kFirstToken[] = {0.1, 0.2, 0.4, 0.6, 0.8, 1,  2,   4,   6,
                                  8,   10,  20,  40,  60,  80, 100, 200, 400};
constexpr double kBetween[] = {0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025,
                               0.030, 0.035, 0.040, 0.060, 0.080, 0.100, 0.200, 0.400,
                               0.600, 0.800, 1.000, 2.000, 4.000, 6.000, 8.000};
constexpr double kRequest[] = {0.1, 0.2, 0.4, 0.6, 0.8, 1,   2,   4,   6,    8,    10,
                               20,  40,  60,  80,  100, 200, 400, 600, 1200, 1800, 2400};
constexpr double kStep[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30};
constexpr double kTokenize[] = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005,
                                0.01,   0.02,   0.05,   0.1,   0.5,   1};
constexpr double kLengths[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                               1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

class Text {
 public:
  explicit Text(std::string prefix, std::string labels = "")
      : prefix_(std::move(prefix)), labels_(std::move(labels)) {}

  void head(std::string_view name, std::string_view type, std::string_view help) {
    out_ += fmt::format("# HELP {0}{1} {3}\n# TYPE {0}{1} {2}\n", prefix_, name, type, help);
  }
  void value(std::string_view name, double v, std::string_view labels = "") {
    out_ += fmt::format("{}{}{} {}\n", prefix_, name, braces(labels), v);
  }
  void counter(std::string_view name, std::int64_t v, std::string_view help) {
    head(name, "counter", help);
    value(name, static_cast<double>(v));
  }
  void counters(std::string_view name, const Labelled& values, std::string_view help) {
    head(name, "counter", help);
    for (const auto& [labels, v] : values) value(name, static_cast<double>(v), labels);
  }
  void gauge(std::string_view name, double v, std::string_view help) {
    head(name, "gauge", help);
    value(name, v);
  }
  void histogram(std::string_view name, const Histogram& h, std::string_view help) {
    head(name, "histogram", help);
    series(name, h, "");
  }
  void series(std::string_view name, const Histogram& h, const std::string& labels) {
    std::int64_t sum = 0;
    const std::string before = labels.empty() ? "" : labels + ",";
    const std::string bucket = std::string(name) + "_bucket";
    for (std::size_t i = 0; i <= h.edges().size(); ++i) {
      sum += h.counts()[i];
      const std::string edge =
          i < h.edges().size() ? fmt::format("{}", h.edges()[i]) : std::string("+Inf");
      value(bucket, static_cast<double>(sum), before + "le=\"" + edge + "\"");
    }
    value(std::string(name) + "_sum", h.sum(), labels);
    value(std::string(name) + "_count", static_cast<double>(h.count()), labels);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string braces(std::string_view labels) const {
    if (labels.empty() && labels_.empty()) return "";
    return fmt::format("{{{}{}{}}}", labels_, labels.empty() || labels_.empty() ? "" : ",", labels);
  }
  std::string prefix_, labels_, out_;
};

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// A counter for each position in a draft, numbered from `first`.
Labelled by_place(std::string_view label, std::size_t first, const DraftStats& drafts,
                  const std::array<std::int64_t, kMaxDraftTokens>& counts) {
  Labelled out;
  for (std::size_t p = 0; p < drafts.places(); ++p) {
    out[fmt::format("{}=\"{}\"", label, p + first)] = counts[p];
  }
  return out;
}

std::string own_text(const Metrics& m) {
  Text t("lathe_");
  t.counter("prompt_tokens_total", m.prompt_tokens, "Tokens of admitted prompts.");
  t.counter("generation_tokens_total", m.generation_tokens, "Answer tokens.");
  t.counter("cached_tokens_total", m.cached_tokens, "Prompt tokens from the prefix cache.");
  t.counter("reasoning_tokens_total", m.reasoning_tokens, "Reasoning tokens.");
  t.counter("ignored_fields_total", m.ignored_fields, "Unknown request fields.");
  t.counter("lost_log_lines_total", m.lost_log_lines,
            "Prints to stderr that a full disk, a full pipe or a reader that left has lost.");
  t.counter("connection_failures_total", m.connection_failures,
            "Exceptions that ended a connection or lost a part of its answer.");
  t.counter("preemptions_total", m.preemptions,
            "Requests that lost their pages and were queued again.");
  t.counter("decode_keys_total", m.key_reads.attended,
            "Keys that decode rows' requests attended to, over all layers.");
  t.counter("shared_keys_total", m.key_reads.shared,
            "Of these, not read because the read of another request served.");
  t.counter("draft_checks_total", m.drafts.checks, "Verification steps, counted per request.");
  t.counters("drafted_tokens_total", by_place("place", 1, m.drafts, m.drafts.drafted),
             "Draft tokens, by position.");
  t.counters("accepted_drafts_total", by_place("place", 1, m.drafts, m.drafts.accepted),
             "Accepted draft tokens, by position.");
  t.gauge("acceptance_length", m.drafts.acceptance_length(),
          "Mean tokens per verification step, the model's own included.");
  t.counters("requests_total", m.requests, "Requests that have ended.");
  t.counters("aborted_requests_total", m.aborted, "Requests that were aborted, by reason.");
  t.counters("refused_requests_total", m.refused, "Rejected requests, by code.");
  t.counters("http_responses_total", m.http_responses, "HTTP responses.");
  t.counters("grammar_compiles_total", m.grammar_compiles,
             "Answer constraints: compiled, cached, or rejected.");
  t.gauge("num_running_reqs", static_cast<double>(m.running), "Running requests.");
  t.gauge("num_queue_reqs", static_cast<double>(m.queued), "Waiting requests.");
  t.gauge("queued_tokens", static_cast<double>(m.queued_tokens),
          "Prompt tokens of waiting requests.");
  t.gauge("open_streams", static_cast<double>(m.open_streams), "Open streams.");
  t.gauge("connections", static_cast<double>(m.connections), "Open connections.");
  t.gauge("num_used_tokens", static_cast<double>(m.used_tokens),
          "Cache capacity of the pages that requests hold, in tokens.");
  t.gauge("max_total_num_tokens", static_cast<double>(m.total_tokens), "Cache capacity in tokens.");
  t.gauge("token_usage", share(m.used_tokens, m.total_tokens), "Used share of the cache capacity.");
  t.gauge("cache_hit_rate", share(m.cached_tokens, m.prompt_tokens),
          "Share of prompt tokens found in the prefix cache.");
  t.gauge("gen_throughput", m.generation_rate, "Answer tokens per second over the last seconds.");
  t.gauge("page_size", static_cast<double>(m.page_size), "Tokens per page.");
  t.gauge("num_pages", static_cast<double>(m.pages), "Pages in the cache.");
  t.gauge("num_held_pages", static_cast<double>(m.held_pages), "Pages that requests hold.");
  t.gauge("context_len", static_cast<double>(m.context_length), "Maximum tokens per request.");
  t.gauge("engine_heartbeat_age_seconds", m.heartbeat_age,
          "Time since the engine's last step while it has work.");
  t.gauge("mailbox_steps", static_cast<double>(m.mailbox_steps),
          "Engine steps whose results the serving thread has not read.");
  t.head("attn_plan_info", "gauge", "The planner's choice.");
  t.value("attn_plan_info", 1, m.plan_labels);
  t.histogram("time_to_first_token_seconds", m.first_token_seconds,
              "Time to a request's first token.");
  t.histogram("inter_token_latency_seconds", m.between_tokens_seconds,
              "Time between two tokens of a choice.");
  t.histogram("request_time_per_output_token_seconds", m.seconds_per_token,
              "Time per token of a request after its first.");
  t.histogram("e2e_request_latency_seconds", m.request_seconds,
              "Time from a request's arrival to its end.");
  t.histogram("queue_time_seconds", m.queue_seconds,
              "Time from a request's arrival to its admission.");
  t.head("step_seconds", "histogram", "Time of a forward pass; prefill: one with prefill rows.");
  t.series("step_seconds", m.prefill_step_seconds, "kind=\"prefill\"");
  t.series("step_seconds", m.decode_step_seconds, "kind=\"decode\"");
  t.histogram("tokenize_seconds", m.tokenize_seconds, "Time to turn a request's body into tokens.");
  t.histogram("prompt_tokens", m.prompt_lengths, "Prompt tokens per request.");
  t.histogram("generation_tokens", m.answer_lengths, "Answer tokens per choice.");
  return t.take();
}

std::string sglang_text(const Metrics& m, const std::string& model) {
  Text t("sglang:", "model_name=\"" + escaped(model) + "\"");
  t.counter("prompt_tokens_total", m.prompt_tokens, "Number of prefill tokens processed.");
  t.counter("generation_tokens_total", m.generation_tokens,
            "Number of generation tokens processed.");
  t.counter("cached_tokens_total", m.cached_tokens, "Number of cached prompt tokens.");
  t.head("num_requests_total", "counter", "Number of requests processed.");
  t.value("num_requests_total", static_cast<double>(m.request_seconds.count()));
  t.gauge("num_running_reqs", static_cast<double>(m.running), "The number of running requests.");
  t.gauge("num_queue_reqs", static_cast<double>(m.queued),
          "The number of requests in the waiting queue.");
  t.gauge("num_used_tokens", static_cast<double>(m.used_tokens), "The number of used tokens.");
  t.gauge("max_total_num_tokens", static_cast<double>(m.total_tokens),
          "Maximum total number of tokens in the cache.");
  t.gauge("token_usage", share(m.used_tokens, m.total_tokens), "The token usage.");
  t.gauge("gen_throughput", m.generation_rate, "The generation throughput (token/s).");
  t.gauge("cache_hit_rate", share(m.cached_tokens, m.prompt_tokens), "The prefix cache hit rate.");
  t.gauge("spec_accept_length", m.drafts.acceptance_length(),
          "The average acceptance length of speculative decoding.");
  t.gauge("spec_accept_rate", m.drafts.acceptance_rate(),
          "The average acceptance rate of speculative decoding.");
  t.histogram("time_to_first_token_seconds", m.first_token_seconds,
              "Time to first token in seconds.");
  t.histogram("inter_token_latency_seconds", m.between_tokens_seconds,
              "Inter-token latency in seconds.");
  t.histogram("e2e_request_latency_seconds", m.request_seconds,
              "End-to-end request latency in seconds.");
  t.histogram("queue_time_seconds", m.queue_seconds, "Time in the queue in seconds.");
  return t.take();
}

std::string vllm_text(const Metrics& m, const std::string& model) {
  Text t("vllm:", "model_name=\"" + escaped(model) + "\",engine=\"0\"");
  t.gauge("num_requests_running", static_cast<double>(m.running),
          "Number of requests in model execution batches.");
  t.gauge("num_requests_waiting", static_cast<double>(m.queued),
          "Number of requests waiting to be processed.");
  t.gauge("kv_cache_usage_perc", share(m.held_pages, m.pages),
          "KV-cache usage. 1 means 100 percent usage.");
  t.counter("num_preemptions_total", m.preemptions, "Cumulative number of preemptions.");
  t.counter("prompt_tokens_total", m.prompt_tokens, "Number of prefill tokens processed.");
  t.counter("generation_tokens_total", m.generation_tokens,
            "Number of generation tokens processed.");
  t.counter("prefix_cache_queries_total", m.prompt_tokens, "Prefix cache queries, in tokens.");
  t.counter("prefix_cache_hits_total", m.cached_tokens, "Prefix cache hits, in tokens.");
  t.counter("spec_decode_num_drafts_total", m.drafts.checks, "Number of spec decoding drafts.");
  t.counter("spec_decode_num_draft_tokens_total", m.drafts.all_drafted(),
            "Number of draft tokens.");
  t.counter("spec_decode_num_accepted_tokens_total", m.drafts.all_accepted(),
            "Number of accepted tokens.");
  t.counters("spec_decode_num_accepted_tokens_per_pos_total",
             by_place("position", 0, m.drafts, m.drafts.accepted),
             "Accepted tokens per draft position.");
  t.histogram("time_to_first_token_seconds", m.first_token_seconds,
              "Histogram of time to first token in seconds.");
  t.histogram("inter_token_latency_seconds", m.between_tokens_seconds,
              "Histogram of inter-token latency in seconds.");
  t.histogram("request_time_per_output_token_seconds", m.seconds_per_token,
              "Histogram of time per output token of requests.");
  t.histogram("e2e_request_latency_seconds", m.request_seconds,
              "Histogram of end to end request latency in seconds.");
  t.histogram("request_queue_time_seconds", m.queue_seconds, "Histogram of time spent waiting.");
  t.histogram("request_prompt_tokens", m.prompt_lengths, "Number of prefill tokens processed.");
  t.histogram("request_generation_tokens", m.answer_lengths,
              "Number of generation tokens processed.");
  return t.take();
}

}  // namespace

Histogram::Histogram(std::span<const double> edges)
    : edges_(edges.begin(), edges.end()), counts_(edges.size() + 1) {}

void Histogram::add(double value) {
  const bool again = (last_ == edges_.size() || value <= edges_[last_]) &&
                     (last_ == 0 || edges_[last_ - 1] < value);
  if (!again) {
    const auto at = std::lower_bound(edges_.begin(), edges_.end(), value) - edges_.begin();
    last_ = static_cast<std::size_t>(at);
  }
  ++counts_[last_];
  ++count_;
  sum_ += value;
}

Metrics::Metrics()
    : first_token_seconds(kFirstToken),
      between_tokens_seconds(kBetween),
      seconds_per_token(kBetween),
      request_seconds(kRequest),
      queue_seconds(kFirstToken),
      prefill_step_seconds(kStep),
      decode_step_seconds(kStep),
      tokenize_seconds(kTokenize),
      prompt_lengths(kLengths),
      answer_lengths(kLengths) {}

std::string metrics_text(const Metrics& m, const MetricNames& names) {
  std::string out = own_text(m);
  if (names.sglang) out += sglang_text(m, names.model);
  if (names.vllm) out += vllm_text(m, names.model);
  return out;
}

}  // namespace lathe
