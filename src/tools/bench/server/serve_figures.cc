#include "tools/bench/server/serve_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "io/text/quote.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

double percentile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - std::floor(at));
}

double first_ms(const ServeRecord& r) { return 1e3 * (r.first - r.sent); }
double whole_ms(const ServeRecord& r) { return 1e3 * (r.ended - r.sent); }

// Milliseconds for a token after the first.
std::optional<double> token_ms(const ServeRecord& r) {
  if (r.output_tokens < 2) return std::nullopt;
  return (whole_ms(r) - first_ms(r)) / static_cast<double>(r.output_tokens - 1);
}

bool complete(const ServeRecord& r) { return r.error.empty() && r.first > 0; }

enum class Measured { first, token, gap, whole };

std::vector<double> values_of(const std::vector<ServeRecord>& records, Measured figure) {
  std::vector<double> out;
  for (const ServeRecord& r : records) {
    if (!complete(r)) continue;
    if (figure == Measured::first) out.push_back(first_ms(r));
    if (figure == Measured::whole) out.push_back(whole_ms(r));
    if (figure == Measured::gap) {
      for (double gap : r.gaps) out.push_back(1e3 * gap);
    }
    if (figure != Measured::token) continue;
    if (const auto ms = token_ms(r)) out.push_back(*ms);
  }
  return out;
}

bool within(const ServeRecord& r, const ServeLimits& limits) {
  const auto token = token_ms(r);
  return (!limits.ttft || first_ms(r) <= *limits.ttft) &&
         (!limits.e2el || whole_ms(r) <= *limits.e2el) &&
         (!limits.tpot || !token || *token <= *limits.tpot);
}

std::int64_t most_at_once(const std::vector<ServeRecord>& records) {
  std::vector<std::pair<double, int>> changes;  // ends before beginnings at the same time
  for (const ServeRecord& r : records) {
    changes.emplace_back(r.sent, 1);
    changes.emplace_back(r.ended, -1);
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t open = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, open += change);
  return most;
}

// Tokens of an answer come with its parts, in equal shares.
std::vector<std::int64_t> tokens_by_second(const std::vector<ServeRecord>& records,
                                           double duration) {
  std::vector<double> out(static_cast<std::size_t>(duration) + 1);
  for (const ServeRecord& r : records) {
    if (!complete(r) || r.parts == 0) continue;
    const double share = static_cast<double>(r.output_tokens) / static_cast<double>(r.parts);
    double at = r.first;
    const auto add = [&] { out[std::min(static_cast<std::size_t>(at), out.size() - 1)] += share; };
    add();
    for (double gap : r.gaps) {
      at += gap;
      add();
    }
  }
  std::vector<std::int64_t> whole;
  for (double n : out) whole.push_back(std::lround(n));
  return whole;
}

void add_spread(Json& json, const std::string& name, const TimeSpread& s) {
  json["mean_" + name + "_ms"] = s.mean;
  json["median_" + name + "_ms"] = s.p50;
  json["std_" + name + "_ms"] = s.std;
  json["p50_" + name + "_ms"] = s.p50;
  json["p90_" + name + "_ms"] = s.p90;
  json["p99_" + name + "_ms"] = s.p99;
}

}  // namespace

Result<ServeLimits> ServeLimits::parse(const std::string& text) {
  ServeLimits out;
  const auto wrong = [](const std::string& got) {
    return Error{ErrorCode::invalid_argument, "--goodput", "ttft:MS, tpot:MS or e2el:MS, by commas",
                 quote(got), ""};
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at);
    at = end + 1;
    const std::size_t colon = std::min(one.find(':'), one.size());
    const std::string name = one.substr(0, colon);
    auto* const into = name == "ttft"   ? &out.ttft
                       : name == "tpot" ? &out.tpot
                       : name == "e2el" ? &out.e2el
                                        : nullptr;
    char* rest = nullptr;
    const std::string number = one.substr(std::min(colon + 1, one.size()));
    const double ms = std::strtod(number.c_str(), &rest);
    if (into == nullptr || number.empty() || *rest != '\0' || !(ms > 0)) return wrong(one);
    *into = ms;
  }
  return out;
}

TimeSpread::TimeSpread(std::vector<double> values) : sorted(std::move(values)) {
  if (sorted.empty()) return;
  std::sort(sorted.begin(), sorted.end());
  const auto n = static_cast<double>(sorted.size());
  for (double v : sorted) mean += v / n;
  double square = 0;
  for (double v : sorted) square += (v - mean) * (v - mean) / n;
  std = std::sqrt(square);
  p50 = percentile(sorted, 0.5);
  p90 = percentile(sorted, 0.9);
  p99 = percentile(sorted, 0.99);
}

ServeFigures::ServeFigures(const std::vector<ServeRecord>& records, const ServeLoad& load,
                           const ServeLimits& limits)
    : ttft(values_of(records, Measured::first)),
      tpot(values_of(records, Measured::token)),
      itl(values_of(records, Measured::gap)),
      e2el(values_of(records, Measured::whole)) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    const ServeRecord& r = records[i];
    duration = std::max(duration, r.ended);
    if (!complete(r)) {
      ++failed;
      continue;
    }
    ++completed;
    input_tokens += r.input_tokens;
    output_tokens += r.output_tokens;
    if (within(r, limits)) ++good;
    if (load.items.empty()) continue;
    ++marked;
    if (mark_answer(load.items[i].first, load.items[i].second, r.text) == Mark::right) ++right;
  }
  most_open = most_at_once(records);
  tokens_in_second = tokens_by_second(records, duration);
}

Json figures_json(const ServeFigures& f, const ServeLimits& limits,
                  const std::vector<ServeRecord>& records, bool detailed) {
  Json out{{"duration", f.duration},
           {"completed", f.completed},
           {"failed", f.failed},
           {"total_input_tokens", f.input_tokens},
           {"total_output_tokens", f.output_tokens},
           {"request_throughput", f.per_second(f.completed)},
           {"request_goodput", limits.any() ? Json(f.per_second(f.good)) : Json()},
           {"input_throughput", f.per_second(f.input_tokens)},
           {"output_throughput", f.per_second(f.output_tokens)},
           {"total_token_throughput", f.per_second(f.input_tokens + f.output_tokens)},
           {"max_output_tokens_per_s",
            *std::max_element(f.tokens_in_second.begin(), f.tokens_in_second.end())},
           {"max_concurrent_requests", f.most_open}};
  if (f.marked > 0) {
    out["marked"] = f.marked;
    out["right"] = f.right;
  }
  add_spread(out, "ttft", f.ttft);
  add_spread(out, "tpot", f.tpot);
  add_spread(out, "itl", f.itl);
  add_spread(out, "e2el", f.e2el);
  if (!detailed) return out;
  for (const char* name :
       {"input_lens", "output_lens", "start_times", "ttfts", "e2els", "itls", "errors"}) {
    out[name] = Json::array();
  }
  for (const ServeRecord& r : records) {
    out["input_lens"].push_back(r.input_tokens);
    out["output_lens"].push_back(r.output_tokens);
    out["start_times"].push_back(r.sent);
    out["ttfts"].push_back(complete(r) ? r.first - r.sent : 0);
    out["e2els"].push_back(complete(r) ? r.ended - r.sent : 0);
    out["itls"].push_back(r.gaps);
    out["errors"].push_back(r.error);
  }
  return out;
}

std::string figures_text(const ServeFigures& f, const ServeLimits& limits) {
  std::string out =
      fmt::format("requests   {} complete, {} failed, in {:.2f} s, at most {} at once\n",
                  f.completed, f.failed, f.duration, f.most_open);
  out += fmt::format("           {:.2f} a second", f.per_second(f.completed));
  if (limits.any()) {
    out += fmt::format("; {:.2f} within --goodput ({:.1f} %)", f.per_second(f.good),
                       100.0 * static_cast<double>(f.good) /
                           static_cast<double>(std::max<std::int64_t>(1, f.completed + f.failed)));
  }
  out += fmt::format("\ntokens/s   in {:.1f}, out {:.1f}, both {:.1f}; most out in a second {}\n",
                     f.per_second(f.input_tokens), f.per_second(f.output_tokens),
                     f.per_second(f.input_tokens + f.output_tokens),
                     *std::max_element(f.tokens_in_second.begin(), f.tokens_in_second.end()));
  out += fmt::format("tokens     in {}, out {}\n", f.input_tokens, f.output_tokens);
  if (f.marked > 0) out += fmt::format("tasks      {} of {} right\n", f.right, f.marked);
  out +=
      fmt::format("\n{:26}{:>10}{:>10}{:>10}{:>10}\n", "milliseconds", "mean", "p50", "p90", "p99");
  for (const auto& [name, s] :
       {std::pair{"to the first token", &f.ttft}, std::pair{"per token after it", &f.tpot},
        std::pair{"between parts", &f.itl}, std::pair{"to the end", &f.e2el}}) {
    out += fmt::format("{:26}{:10.2f}{:10.2f}{:10.2f}{:10.2f}\n", name, s->mean, s->p50, s->p90,
                       s->p99);
  }
  return out;
}

}  // namespace lathe
