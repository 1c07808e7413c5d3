#include "engine/schedule/schedule.h"

#include <numeric>
#include <vector>

namespace lathe {
namespace {

// Pages that a request may hold in addition to those that it has.
std::int64_t room(const ScheduledRequest& r, const PageRule& rule, std::int64_t block_tokens) {
  if (rule.most == kNoBound) return kNoBound;
  const std::int64_t held = pages_for(r.computed, rule.page_size) -
                            rule.first_needed_entry(r.computed, block_tokens) +
                            rule.new_pages(r.computed, r.covered);
  return std::max<std::int64_t>(0, rule.most - held);
}

// Pages that a request still needs for all its tokens and, unless it ends, the next one, but at
// most what it may hold at once.
std::int64_t missing(const ScheduledRequest& r, const PageRule& rule, std::int64_t block_tokens) {
  const std::int64_t rows = r.known + (r.ends ? 0 : 1);
  const std::int64_t more = pages_for(rows, rule.page_size) - rule.final_entries(r.covered);
  return std::clamp<std::int64_t>(more, 0, room(r, rule, block_tokens));
}

// Tokens that a request can compute with `available` more pages of each kind.
std::int64_t reach(const ScheduledRequest& r, std::span<const PageRule> rules,
                   std::span<const std::int64_t> available) {
  std::int64_t tokens = kNoBound;
  for (std::size_t g = 0; g < rules.size(); ++g) {
    if (available[g] >= rules[g].per_step) continue;
    const std::int64_t size = rules[g].page_size;
    tokens = std::min(tokens, (rules[g].final_entries(r.covered) + available[g]) * size);
  }
  return tokens;
}

}  // namespace

Decision schedule_running(std::span<const ScheduledRequest> running, const ScheduleLimits& limits,
                          std::span<std::int64_t> available, std::span<std::int64_t> rows) {
  std::int64_t budget = limits.prefill_rows;
  for (std::size_t i = 0; i < running.size(); ++i) {
    const ScheduledRequest& r = running[i];
    rows[i] = r.decodes() ? 1 : std::min({r.known - r.computed, r.most_rows, budget});
    const std::int64_t most = reach(r, limits.pages, available) - r.computed;
    if (rows[i] > most) {
      if (r.decodes() || i + 1 < running.size()) return {true, 0};
      rows[i] = most;
    }
    for (std::size_t g = 0; g < limits.pages.size(); ++g) {
      available[g] -= limits.pages[g].new_pages(r.covered, r.computed + rows[i]);
    }
    if (!r.decodes()) budget -= rows[i];
  }
  return {false, budget};
}

void share_rows(std::int64_t rows, std::span<std::int64_t> wanted) {
  std::vector<std::size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return wanted[a] < wanted[b]; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto others = static_cast<std::int64_t>(order.size() - i);
    std::int64_t& got = wanted[order[i]];
    got = std::min(got, (rows + others - 1) / others);
    rows -= got;
  }
}

bool admits(std::span<const ScheduledRequest> running, const ScheduledRequest& next,
            const ScheduleLimits& limits, std::span<const std::int64_t> available) {
  for (std::size_t g = 0; g < limits.pages.size(); ++g) {
    const PageRule& rule = limits.pages[g];
    std::int64_t reserve = missing(next, rule, limits.block_tokens);
    for (const ScheduledRequest& r : running) reserve += missing(r, rule, limits.block_tokens);
    if (reserve > available[g]) return false;
  }
  return true;
}

std::int64_t first_rows(const ScheduledRequest& next, const ScheduleLimits& limits,
                        std::int64_t prefill_rows) {
  std::int64_t rows = std::min(next.known - next.computed, prefill_rows);
  for (const PageRule& rule : limits.pages) {
    const std::int64_t more = room(next, rule, limits.block_tokens);
    if (more >= rule.per_step) continue;
    rows =
        std::min(rows, (rule.final_entries(next.covered) + more) * rule.page_size - next.computed);
  }
  return rows;
}

std::int64_t draft_rows(std::int64_t known, std::int64_t wanted, const ScheduleLimits& limits,
                        std::span<std::int64_t> available) {
  const auto more = [known](const PageRule& rule, std::int64_t rows) {
    return pages_for(known + rows, rule.page_size) - pages_for(known, rule.page_size);
  };
  std::int64_t rows = wanted;
  for (std::size_t g = 0; g < limits.pages.size(); ++g) {
    const std::int64_t size = limits.pages[g].page_size;
    rows = std::min(rows, (pages_for(known, size) + available[g]) * size - known);
  }
  for (std::size_t g = 0; g < limits.pages.size(); ++g) {
    available[g] -= more(limits.pages[g], rows);
  }
  return rows;
}

}  // namespace lathe
