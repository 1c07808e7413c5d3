#include <fmt/format.h>

#include "plan/explain.h"
#include "plan/rank_plan.h"

namespace lathe {
namespace {

double gigabytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

// "heads 32 of 64 · experts 256 at width 1,024 of 2,048 · vocabulary 64,640"
std::string shares_text(const RankPlan& p) {
  const SplitSizes& w = p.whole;
  const Share& m = p.most;
  std::string out = fmt::format("heads {} of {}", m.heads.count, w.heads);
  if (w.kv_heads > 0) {
    out += fmt::format(" · KV heads {} of {}", m.kv_heads.count, w.kv_heads);
    if (w.kv_heads < p.parallel.tp) {
      out += fmt::format(", each on {} ranks", p.parallel.tp / w.kv_heads);
    }
  }
  const auto width = [&](std::string_view name, const Range& part, std::int64_t whole) {
    if (whole == 0) return;
    out += fmt::format(" · {} {} of {}", name, grouped(part.count), grouped(whole));
  };
  width("width", m.ffn, w.ffn);
  if (w.experts > 0) {
    out += m.experts.count == w.experts
               ? fmt::format(" · experts {}", w.experts)
               : fmt::format(" · experts {} of {}", m.experts.count, w.experts);
    if (m.expert_width.count < w.expert_width) {
      out +=
          fmt::format(" at width {} of {}", grouped(m.expert_width.count), grouped(w.expert_width));
    }
  }
  width("shared expert", m.shared, w.shared);
  return out + fmt::format(" · vocabulary {}", grouped(m.vocab.count));
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.{}f}", 1e3 * seconds, seconds < 2e-4 ? 2 : 1);
}

std::string exchange_line(const RankPlan& p) {
  const ExchangePlan& e = p.exchange;
  std::string out = fmt::format("{:<10}{}, 2 a layer, {} B a row and peer", "exchange",
                                name(e.kind), grouped(e.row_bytes()));
  if (e.kind == ExchangeKind::peer) {
    out += fmt::format("; push to {} rows, {} beyond", e.push_rows,
                       e.divided ? "each rank sums a share" : "each rank pulls all rows");
  }
  out += fmt::format("; {} a step, and 2 for embedding and logits", e.in_layers);
  if (e.base_seconds == 0) return out + "\n";
  const auto step = [&](std::int64_t rows) {
    return milliseconds(static_cast<double>(e.in_layers) *
                        exchange_seconds(e, p.parallel.tp, rows));
  };
  return out + fmt::format(": at least {} ms at 1 row, {} at 64\n", step(1), step(64));
}

}  // namespace

std::string explain_ranks(const RankPlan& p, double cache_bytes_per_token) {
  if (p.parallel.alone()) return "";
  std::string joined = "of this CPU's threads";
  if (p.exchange.kind != ExchangeKind::host) {
    joined = fmt::format("× {}, {} {:.0f} GB/s", p.device,
                         p.exchange.kind == ExchangeKind::peer ? "NVLink" : "NCCL",
                         p.exchange.bytes_per_second / 1e9);
  }
  std::string out =
      fmt::format("{:<10}{} {}    {}\n", "ranks", p.parallel.tp, joined, shares_text(p));
  out +=
      fmt::format("{:<10}{:.1f} GB a rank (replicated {:.1f})   cache {} B a token on every rank\n",
                  "weights", gigabytes(p.weight_bytes), gigabytes(p.replicated_bytes),
                  grouped(static_cast<std::int64_t>(cache_bytes_per_token)));
  out += exchange_line(p);
  for (std::size_t i = 0; i < p.floors.size(); ++i) {
    const RankFloor& f = p.floors[i];
    out += i == 0
               ? fmt::format("{:<10}a decode step at 4,096 tokens, memory + exchanges: ", "floor")
               : ", ";
    out += fmt::format("{:.1f} + {:.1f} ms at {} row{}", 1e3 * f.memory_seconds,
                       1e3 * f.exchange_seconds, f.rows, f.rows == 1 ? "" : "s");
  }
  if (!p.floors.empty()) out += "\n";
  for (const std::string& note : p.notes) out += fmt::format("{:<10}{}\n", "ranks", note);
  return out;
}

}  // namespace lathe
