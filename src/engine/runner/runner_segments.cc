// Cuts a batch into segments, whose rows have the same routes.
#include <algorithm>
#include <functional>

#include "engine/runner/runner.h"

namespace lathe {

// Most rows of a segment with these routes: absorbed queries are tiled to the activations' budget.
std::int64_t Runner::most_rows(std::span<const Route* const> routes) const {
  for (std::size_t g = 0; g < routes.size(); ++g) {
    const bool absorbed = plan(g).problem.kind != ProblemKind::grouped_query &&
                          routes[g] != nullptr && routes[g]->kind != KernelKind::ragged;
    if (absorbed) return tile_;
  }
  return kNoTile;
}

// A row's routes depend on its own position only (E8). So items are cut where the route of any
// group changes, and at the ends of tiles of absorbed queries. Parts of a phase are sorted by
// route, so that equal routes share a segment. A request's parts stay in order, because later
// positions never prefer an earlier route.
void Runner::split(std::span<const BatchItem> items) {
  parts_.clear();
  routes_.clear();
  std::size_t phase_begin = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && items[i].phase != items[i - 1].phase) phase_begin = parts_.size();
    const BatchItem& item = items[i];
    RoutedRows part{.of = &item, .item = i, .cached = item.cached};
    for (std::span<const std::int32_t> rest = item.tokens; !rest.empty();) {
      const std::int64_t n = std::ssize(rest);
      std::int64_t fit = n;
      part.routes = routes_.size();
      for (std::size_t g = 0; g < groups(); ++g) {
        const Route* route = plan(g).route(item.phase, n, part.cached + std::int64_t{1});
        const bool bounded = route != nullptr && route->max_context > 0;
        if (bounded) fit = std::min(fit, route->max_context - part.cached);
        routes_.push_back(route);
      }
      fit = std::min(fit, most_rows(routes_of(part)));
      part.tokens = rest.first(static_cast<std::size_t>(fit));
      part.cut_after = fit < n;
      parts_.push_back(part);
      rest = rest.subspan(static_cast<std::size_t>(fit));
      part.cached += static_cast<std::int32_t>(fit);
      part.cut_before = true;
    }
    const bool phase_ends = i + 1 == items.size() || items[i + 1].phase != items[i].phase;
    if (!phase_ends) continue;
    // A phase's routes are in one array, in order of preference, so addresses can be compared.
    const auto before = [this](const RoutedRows& a, const RoutedRows& b) {
      const auto x = routes_of(a), y = routes_of(b);
      return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end(), std::less<>());
    };
    const std::span phase = std::span(parts_).subspan(phase_begin);
    // Most often all have one route; stable_sort would allocate and copy the large parts.
    if (!std::ranges::is_sorted(phase, before)) {
      std::stable_sort(phase.begin(), phase.end(), before);
    }
  }
}

// Whether part i can join the segment of the part before it. The segment would then have `rows`
// rows, at least `least` in each part, and a longest context of `longest` keys.
bool Runner::joins(std::size_t i, std::int64_t rows, std::int64_t longest,
                   std::int64_t least) const {
  const RoutedRows& part = parts_[i];
  const Phase phase = part.of->phase;
  if (cuts_.empty() || parts_[i - 1].of->phase != phase) return false;
  const auto own = routes_of(part);
  if (!std::ranges::equal(routes_of(parts_[i - 1]), own) || rows > most_rows(own)) return false;
  for (std::size_t g = 0; g < groups(); ++g) {
    const StepBound& bound = bounds_[g];
    const bool compact = own[g] != nullptr && own[g]->unit == KeyUnit::ragged_row;
    const std::int64_t keys = part.cached + std::ssize(part.tokens);
    if (plan(g).route(phase, rows, longest, least) != own[g] || rows > bound.rows ||
        static_cast<std::int64_t>(i - cuts_.back().first) >= bound.requests ||
        (compact && keys_in_cut_ + keys > bound.gather_rows)) {
      return false;
    }
  }
  return true;
}

// Ends a segment where the next part has other routes, would change the routes of the parts in the
// segment, or does not fit the plan's bounds.
void Runner::cut() {
  cuts_.clear();
  std::int64_t first_row = 0;  // of the open segment
  std::int64_t rows = 0;       // in the open segment
  std::int64_t longest = 0;
  std::int64_t least = INT64_MAX;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::int64_t n = std::ssize(parts_[i].tokens);
    const std::int64_t context = parts_[i].cached + n;
    if (!joins(i, rows + n, std::max(longest, context), std::min(least, n))) {
      first_row += rows;
      cuts_.push_back({i, i, first_row});
      rows = longest = keys_in_cut_ = 0;
      least = INT64_MAX;
    }
    cuts_.back().last = i + 1;
    rows += n;
    longest = std::max(longest, context);
    least = std::min(least, n);
    keys_in_cut_ += context;
  }
}

}  // namespace lathe
