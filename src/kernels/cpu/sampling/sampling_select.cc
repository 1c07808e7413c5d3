#include "kernels/cpu/sampling/sampling_select.h"

#include <algorithm>
#include <bit>
#include <span>

#include "kernels/sampling_math.h"

namespace lathe {
namespace {

using sampling::bits_of_f64;
using sampling::f64_of_bits;

constexpr int kBinBits = std::bit_width(static_cast<std::uint64_t>(kWeightBins)) - 1;
constexpr std::int64_t kFewTokens = 512;  // so few are sorted: cheaper than another pass

Cut cut_at(const Candidate& c) { return {c.weight, c.token}; }

struct Neighbourhood {
  double above = 0;               // measure of all tokens that rank before these
  std::span<Candidate> tokens{};  // by rank; empty: the measure of all tokens is below the target
};

// The tokens among which the running measure (a count or a sum of weights, known to +-slack)
// reaches `target`. `floor`: tokens of smaller weight are not needed to reach target + slack.
template <class Measure>
Neighbourhood around(const double* weights, std::int64_t n, const Cut& from, double floor,
                     double target, double slack, Measure measure, const SelectMemory& memory) {
  double least = std::max({from.weight, floor, 0x1p-1022});
  double most = 1;
  double above = 0;
  for (bool searching = true; searching;) {
    if (!narrow_range(weights, n, from, least, most)) return {};
    if (least == most) break;
    const std::uint64_t low = bits_of_f64(least);
    const std::uint64_t high = bits_of_f64(most);
    const int shift = std::max(0, static_cast<int>(std::bit_width(high - low)) - kBinBits);
    const auto bins = static_cast<std::int64_t>((high - low) >> shift) + 1;
    std::fill_n(memory.bins, bins, WeightBin{});
    add_to_bins(weights, n, from, least, most, shift, memory.bins);
    std::int64_t first = -1, last = 0, tokens = 0;
    double reached = above;
    for (std::int64_t b = bins - 1; b >= 0; --b) {
      const double before = reached;
      reached += measure(memory.bins[b]);
      if (first < 0 && reached >= target - slack) {
        first = b;
        above = before;
      }
      if (first >= 0) tokens += memory.bins[b].count;
      if (reached >= target + slack) {
        last = b;
        break;
      }
    }
    if (first < 0) return {};
    most = std::min(most, f64_of_bits(low + (static_cast<std::uint64_t>(first + 1) << shift) - 1));
    least = f64_of_bits(low + (static_cast<std::uint64_t>(last) << shift));
    searching = tokens > kFewTokens && first == last && shift > 0;
  }
  const std::int64_t count = gather_range(weights, n, from, least, most, memory.candidates);
  const std::span<Candidate> tokens(memory.candidates, static_cast<std::size_t>(count));
  // Tokens of equal weight are in order already, and may be the whole vocabulary.
  if (!std::is_sorted(tokens.begin(), tokens.end())) std::sort(tokens.begin(), tokens.end());
  return {above, tokens};
}

}  // namespace

Cut cut_top_k(const double* weights, std::int64_t n, const Cut& from, std::int64_t k,
              const SelectMemory& memory) {
  const auto count = [](const WeightBin& bin) { return static_cast<double>(bin.count); };
  const auto target = static_cast<double>(k);
  const Neighbourhood near = around(weights, n, from, 0, target, 0, count, memory);
  const auto place = static_cast<std::size_t>(target - near.above) - 1;
  return place < near.tokens.size() ? cut_at(near.tokens[place]) : from;
}

Cut cut_top_p(const double* weights, std::int64_t n, const Cut& from, double p,
              const SelectMemory& memory) {
  const double sum = sum_kept(weights, n, from);
  const double target = p * sum;
  // Sums by bins and sums by ids round differently: at most n additions (plus the bins') with an
  // error of 2^-53 of the whole each; twice that to be safe.
  const double slack = static_cast<double>(n + 8 * kWeightBins) * 0x1p-52 * sum;
  // All tokens below `floor` together weigh less than half of what top_p drops.
  const double floor = sum * (1 - p) * 0.5 / static_cast<double>(n);
  const Neighbourhood near = around(
      weights, n, from, floor, target, slack, [](const WeightBin& bin) { return bin.sum; }, memory);
  if (near.tokens.empty()) return from;
  std::size_t first = near.tokens.size() - 1, last = first;
  double reached = near.above;
  bool found = false;
  for (std::size_t i = 0; i < near.tokens.size(); ++i) {
    reached += near.tokens[i].weight;
    if (!found && reached >= target - slack) {
      found = true;
      first = i;
    }
    if (reached >= target + slack) {
      last = i;
      break;
    }
  }
  // Usually one token is left. Otherwise search with the exact sums of ops/sampling.h, which never
  // fall from rank to rank.
  while (first < last) {
    const std::size_t middle = (first + last) / 2;
    if (sum_kept(weights, n, cut_at(near.tokens[middle])) >= target) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return cut_at(near.tokens[first]);
}

}  // namespace lathe
