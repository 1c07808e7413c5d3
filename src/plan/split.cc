#include "plan/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace lathe {
namespace {

constexpr double kSmallPart = 0.01;

std::int64_t blocks_of(std::int64_t width, std::int64_t block) {
  return (width + block - 1) / block;
}

class Rules {
 public:
  Rules(const SplitModel& model, std::int32_t ranks) : m_(model), n_(ranks) {}

  std::vector<Reason> broken() {
    const SplitSizes& s = m_.sizes;
    if (s.heads % n_ != 0) add("attention heads", fmt::format("ranks that divide {}", s.heads));
    for (const std::int32_t heads : {s.kv_heads, s.other_kv_heads}) {
      if (heads == 0 || heads % n_ == 0 || n_ % heads == 0) continue;
      add("KV heads", fmt::format("ranks that divide {} or are a multiple", heads));
    }
    if (s.o_groups % n_ != 0) add("o_groups", fmt::format("ranks that divide {}", s.o_groups));
    if (s.delta_keys % n_ != 0) {
      add("key heads of the delta rule", fmt::format("ranks that divide {}", s.delta_keys));
    }
    if (!reasons_.empty()) return std::move(reasons_);
    for (const BlockTensor& t : m_.tensors) {
      if (m_.whole_blocks || t.always) whole_blocks(t);
    }
    if (!m_.whole_blocks) return std::move(reasons_);
    width("the dense feed-forward's width", s.ffn, m_.ffn_part, m_.ffn_bytes);
    width("the shared experts' width", s.shared, m_.shared_part, m_.shared_bytes);
    return std::move(reasons_);
  }

 private:
  void whole_blocks(const BlockTensor& t) {
    // More ranks than units: each has one.
    const std::int64_t units = std::max<std::int64_t>(1, t.units / n_);
    if (units * t.each % t.block == 0) return;
    add(t.name, fmt::format("shares of whole blocks of {}", t.block),
        fmt::format("{} of {}", units * t.each, t.units * t.each));
  }
  void width(std::string what, std::int64_t width, double part, std::int64_t bytes) {
    const std::int64_t blocks = blocks_of(width, m_.sizes.ffn_block);
    if (width == 0 || blocks >= n_ || part < kSmallPart || bytes <= kSmallWidth) return;
    add(std::move(what), fmt::format("at most {} ranks, as {} is {} blocks of {}", blocks, width,
                                     blocks, m_.sizes.ffn_block));
  }
  void add(std::string subject, std::string wanted, std::string offered = "") {
    if (offered.empty()) offered = fmt::format("{} ranks", n_);
    reasons_.push_back(
        {Rule::ranks, std::move(subject), "--tp", std::move(wanted), std::move(offered), ""});
  }

  const SplitModel& m_;
  std::int32_t n_;
  std::vector<Reason> reasons_;
};

double width_imbalance(const SplitSizes& s, std::int32_t ranks) {
  std::int64_t most = 0;
  for (std::int32_t r = 0; r < ranks; ++r) {
    most = std::max(most, share_of_blocks(s.expert_width, s.expert_block, r, ranks).count);
  }
  return static_cast<double>(most * ranks) / static_cast<double>(s.expert_width);
}

// WxE, with a product of `ranks`.
std::optional<ExpertSplit> parse_split(std::string_view text, std::int32_t ranks) {
  ExpertSplit out;
  const char* end = text.data() + text.size();
  const auto [at, bad] = std::from_chars(text.data(), end, out.width);
  if (bad != std::errc() || at == end || *at != 'x') return std::nullopt;
  const auto [last, wrong] = std::from_chars(at + 1, end, out.number);
  const bool whole = wrong == std::errc() && last == end && out.width > 0 && out.number > 0;
  return whole && std::int64_t{out.width} * out.number == ranks ? std::optional(out) : std::nullopt;
}

// Whether the request allows the split.
bool allowed(const PlanRequest& request, const ExpertSplit& s) {
  if (request.ep_size > 0) return s.number == request.ep_size;
  if (request.expert_parallel) return s.width == 1;
  if (request.expert_split == "width") return s.number == 1;
  if (request.expert_split == "number") return s.width == 1;
  const auto asked = parse_split(request.expert_split, request.tp);
  return !asked || (asked->width == s.width && asked->number == s.number);
}

bool readable(const PlanRequest& request) {
  for (const char* word : {"auto", "width", "number"}) {
    if (request.expert_split == word) return true;
  }
  return parse_split(request.expert_split, request.tp).has_value();
}

// The flag that shares experts, if there is one, for a model that has none.
std::optional<Reason> expert_flag(const PlanRequest& request) {
  const auto reason = [](std::string_view flag, std::string_view hint) {
    return Reason{Rule::request,          "experts", std::string(flag),
                  "a model with experts", "none",    std::string(hint)};
  };
  if (request.ep_size > 1) return reason("--ep-size", "--ep-size 1");
  if (request.expert_parallel) return reason("--enable-expert-parallel", "");
  if (request.expert_split == "auto") return std::nullopt;
  return reason("--expert-split", "--expert-split auto");
}

}  // namespace

std::string ExpertSplit::text() const { return fmt::format("{}x{}", width, number); }

double number_imbalance(std::int64_t experts, std::int64_t top_k, std::int32_t groups,
                        std::int64_t rows) {
  // The expected largest of 2, 4 or 8 standard normal variables.
  const double largest = groups <= 1 ? 0 : groups == 2 ? 0.564 : groups <= 4 ? 1.029 : 1.424;
  const double chosen = static_cast<double>(top_k) / static_cast<double>(experts);
  const double used = 1 - std::pow(1 - chosen, static_cast<double>(rows));
  const double mean = static_cast<double>(experts) / groups * used;
  return 1 + largest * std::sqrt(mean * (1 - used)) / mean;
}

std::vector<ExpertSplit> expert_splits(const SplitModel& model, std::int32_t ranks,
                                       std::int64_t rows) {
  const SplitSizes& s = model.sizes;
  std::vector<ExpertSplit> out;
  for (std::int32_t width = ranks; width >= 1; width /= 2) {
    ExpertSplit split{width, ranks / width, 1};
    if (s.experts % split.number != 0) continue;
    if (model.whole_blocks && blocks_of(s.expert_width, s.expert_block) < width) continue;
    split.cost =
        width_imbalance(s, width) * number_imbalance(s.experts, model.top_k, split.number, rows);
    out.push_back(split);
  }
  std::ranges::stable_sort(out, {}, &ExpertSplit::cost);
  return out;
}

Result<Parallel, std::vector<Reason>> choose_split(const SplitModel& model,
                                                   const PlanRequest& request) {
  const std::int32_t n = request.tp;
  if (!readable(request)) {
    return std::vector<Reason>{{Rule::request, "--expert-split", "--expert-split",
                                fmt::format("auto, width, number or WxE with W x E = {}", n),
                                fmt::format("\"{}\"", request.expert_split),
                                "--expert-split auto"}};
  }
  std::vector<Reason> reasons = Rules(model, n).broken();
  if (model.sizes.experts == 0) {
    if (auto flag = expert_flag(request)) reasons.push_back(*std::move(flag));
  }
  Parallel out{.tp = n, .expert_width = n};
  if (model.sizes.experts > 0 && n > 1) {
    const auto splits = expert_splits(model, n, request.max_running_requests);
    const auto chosen =
        std::ranges::find_if(splits, [&](const ExpertSplit& s) { return allowed(request, s); });
    if (chosen != splits.end()) {
      out.expert_width = chosen->width;
      out.expert_number = chosen->number;
    } else {
      const SplitSizes& s = model.sizes;
      reasons.push_back(
          {Rule::ranks, "experts", request.ep_size > 0 ? "--ep-size" : "--expert-split",
           fmt::format("{} blocks of {} of a width, {} experts in equal groups",
                       blocks_of(s.expert_width, s.expert_block), s.expert_block, s.experts),
           request.ep_size > 0
               ? fmt::format("{} groups of {} ranks", request.ep_size, n)
               : fmt::format("{} on {} ranks",
                             request.expert_parallel ? "number" : request.expert_split, n),
           splits.empty() ? "" : "--expert-split " + splits.front().text()});
    }
  }
  if (reasons.empty()) return out;
  // What mends one of several reasons is no way out.
  for (Reason& r : reasons) {
    if (reasons.size() > 1) r.hint.clear();
  }
  return reasons;
}

}  // namespace lathe
