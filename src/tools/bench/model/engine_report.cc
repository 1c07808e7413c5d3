#include "tools/bench/model/engine_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plan/explain.h"

namespace lathe {
namespace {

std::string engine_table(const std::vector<EngineRow>& rows, bool on_gpu) {
  std::string out =
      fmt::format("{:>8} {:>7} {:>6} {:>12} {:>21} {:>8} {:>6}{}\n", "test", "depth", "batch",
                  "tokens/s", "least to most", "GB/s", "share", on_gpu ? "  host us  idle us" : "");
  for (const EngineRow& r : rows) {
    const auto [least, most] = std::minmax_element(r.rates.begin(), r.rates.end());
    out += fmt::format("{:>8} {:>7} {:>6} {:>12.1f} {:>10.1f}{:>11.1f}", r.test.name(),
                       r.test.depth, r.test.batch, r.median(), *least, *most);
    if (r.floor.seconds > 0) {
      out += r.test.decodes ? fmt::format(" {:>8.1f}", r.gbps()) : fmt::format(" {:>8}", "");
      out += fmt::format(" {:>6.2f}", r.share());
    }
    if (!r.host.empty()) out += fmt::format(" {:>8.1f}", 1e6 * median_or_zero(r.host));
    if (!r.idle.empty()) out += fmt::format(" {:>8.1f}", 1e6 * median_or_zero(r.idle));
    if (r.shared > 0) out += fmt::format("  {:.1f} % of keys shared", 100 * r.shared);
    out += "\n";
  }
  return out;
}

std::string gains_table(const std::vector<DraftGain>& gains) {
  std::string out;
  for (const DraftGain& g : gains) {
    out += fmt::format(
        "{}, depth {}, batch {}, {} drafts of a request: {:.2f} tokens in a check, {:.2f} by the "
        "acceptance\n"
        "  tokens/s   {:.1f} without drafts, {:.1f} with them: {:.3f} times\n"
        "  formula    {:.2f} * T({}) {:.3f} ms / (T({}) {:.3f} ms + drafter {:.3f} ms): {:.3f} "
        "times\n"
        "  share      {:.3f}\n",
        g.test, g.depth, g.batch, g.drafts, g.length, g.expected, g.plain, g.drafted, g.measured(),
        g.expected, g.batch, 1e3 * g.step, g.batch * (1 + g.drafts), 1e3 * g.wide, 1e3 * g.drafter,
        g.formula(), g.measured() / g.formula());
  }
  return out;
}

nlohmann::ordered_json json(const std::vector<DraftGain>& gains) {
  auto out = nlohmann::ordered_json::array();
  for (const DraftGain& g : gains) {
    out.push_back({{"test", g.test},
                   {"depth", g.depth},
                   {"batch", g.batch},
                   {"drafts", g.drafts},
                   {"plain_tokens_per_s", g.plain},
                   {"drafts_tokens_per_s", g.drafted},
                   {"ratio", g.measured()},
                   {"tokens_of_a_check", g.length},
                   {"tokens_of_a_check_asked", g.expected},
                   {"step_s", g.step},
                   {"step_of_as_many_rows_s", g.wide},
                   {"drafter_s", g.drafter},
                   {"formula_ratio", g.formula()}});
  }
  return out;
}

nlohmann::ordered_json json(const std::vector<EngineRow>& rows, Runtime& runtime,
                            double read_gbps) {
  nlohmann::ordered_json j = {
      {"architecture", runtime.config().architecture}, {"plan", summary(runtime.plan())},
      {"arithmetic", name(runtime.precision())},       {"threads", runtime.threads().threads()},
      {"weight_bytes", runtime.weight_bytes()},        {"read_gb_per_s", read_gbps},
      {"rows", nlohmann::ordered_json::array()}};
  for (const EngineRow& r : rows) {
    nlohmann::ordered_json row = {{"test", r.test.name()},
                                  {"depth", r.test.depth},
                                  {"batch", r.test.batch},
                                  {"tokens_per_s", r.median()},
                                  {"repeats", r.rates}};
    if (r.floor.seconds > 0) {
      if (r.test.decodes) row["gb_per_s"] = r.gbps();
      row["floor_share"] = r.share();
    }
    if (!r.host.empty()) row["host_s"] = median_or_zero(r.host);
    if (!r.idle.empty()) row["idle_s"] = median_or_zero(r.idle);
    if (r.test.decodes) row["shared_keys_share"] = r.shared;
    j["rows"].push_back(std::move(row));
  }
  return j;
}

}  // namespace

std::string engine_report(const std::vector<EngineRow>& rows, const std::vector<DraftGain>& gains,
                          Runtime& runtime, int repeats, double read_gbps) {
  const Machine& machine = runtime.machine();
  const bool on_gpu = is_gpu(machine.device);
  std::string legend = fmt::format(
      "medians of {}; GB/s are the weights and the cache that a decode step reads, with experts "
      "as "
      "even\nrouters choose them; share is what the step needs at least of its time: those bytes "
      "at "
      "{:.1f} GB/s,\n{}",
      repeats, read_gbps,
      on_gpu ? "the GPU memory's peak, " : "the read rate measured in the same run");
  if (on_gpu) {
    legend += fmt::format(
        "or its products at the peak, {:.0f} TFLOP/s in bf16; host us are the time of a\n"
        "step besides waiting for it, idle us what passes on the GPU without a kernel before it",
        machine.bf16_flops / 1e12);
  }
  return fmt::format("{}, {} threads, products {}, weights {:.0f} MB, {}\n{}\n\n{}{}",
                     runtime.config().architecture, runtime.threads().threads(),
                     name(runtime.precision()), static_cast<double>(runtime.weight_bytes()) / 1e6,
                     summary(runtime.plan()), legend,
                     rows.empty() ? "" : engine_table(rows, on_gpu), gains_table(gains));
}

nlohmann::ordered_json engine_json(const std::vector<EngineRow>& rows,
                                   const std::vector<DraftGain>* gains, Runtime& runtime,
                                   double read_gbps) {
  auto out = json(rows, runtime, read_gbps);
  if (gains != nullptr) out["drafts"] = json(*gains);
  return out;
}

}  // namespace lathe
