#include "layout/rope/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <numbers>
#include <vector>

#include "layout/codec/codec_plan.h"
#include "layout/rope/rope_check.h"
#include "layout/rope/rope_rotate.h"

namespace lathe {
namespace {

Error wrong(const char* field, const char* wanted, double offered) {
  return {ErrorCode::invalid_argument, field, wanted, fmt::format("{}", offered), ""};
}

// The (fractional) pair that makes `turns` turns within the original context.
double pair_of_turns(std::int32_t dim, double theta, double context, double turns) {
  return dim * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

double yarn_mscale(double factor, double mscale) {
  return factor > 1 ? 0.1 * mscale * std::log(factor) + 1 : 1;
}

Result<void> check_llama3(const Llama3RopeConfig& c) {
  // In this form a NaN fails.
  if (!(c.factor >= 1) || std::isinf(c.factor)) {
    return wrong("rope.llama3.factor", "a finite number of 1 or more", c.factor);
  }
  if (!(c.original_context > 0) || std::isinf(c.original_context)) {
    return wrong("rope.llama3.original_context", "a positive number of tokens", c.original_context);
  }
  if (!(c.low_freq_factor > 0)) {
    return wrong("rope.llama3.low_freq_factor", "a positive number", c.low_freq_factor);
  }
  if (!(c.high_freq_factor >= c.low_freq_factor) || std::isinf(c.high_freq_factor)) {
    return wrong("rope.llama3.high_freq_factor", "a finite number of low_freq_factor or more",
                 c.high_freq_factor);
  }
  return {};
}

Result<void> check_longrope(const LongRopeConfig& c, std::int32_t dim) {
  const auto check_factors = [&](const char* field, const std::vector<double>& factors) {
    if (std::ssize(factors) != dim / 2) {
      return Error{ErrorCode::invalid_argument, field, fmt::format("{} factors", dim / 2),
                   fmt::format("{}", factors.size()), ""};
    }
    for (const double f : factors) {
      if (!(f > 0) || std::isinf(f)) return wrong(field, "finite factors above 0", f);
    }
    return Error{};
  };
  if (!(c.original_context > 0) || std::isinf(c.original_context)) {
    return wrong("rope.longrope.original_context", "a positive number of tokens",
                 c.original_context);
  }
  if (!(c.attention_factor > 0) || std::isinf(c.attention_factor)) {
    return wrong("rope.longrope.attention_factor", "a positive number", c.attention_factor);
  }
  for (const auto& [field, factors] : {std::pair("rope.longrope.short_factor", c.short_factors),
                                       std::pair("rope.longrope.long_factor", c.long_factors)}) {
    if (Error e = check_factors(field, factors); !e.field.empty()) return e;
  }
  return {};
}

Result<void> check_dynamic(const DynamicRopeConfig& c, std::int32_t dim) {
  if (!(c.factor >= 1) || std::isinf(c.factor)) {
    return wrong("rope.dynamic.factor", "a finite number of 1 or more", c.factor);
  }
  if (!(c.original_context > 0) || std::isinf(c.original_context)) {
    return wrong("rope.dynamic.original_context", "a positive number of tokens",
                 c.original_context);
  }
  if (dim < 4) return wrong("rope.dim", "4 or more with dynamic scaling", dim);
  return {};
}

double llama3_frequency(double own, const Llama3RopeConfig& c) {
  const double wavelength = 2 * std::numbers::pi / own;
  if (wavelength > c.original_context / c.low_freq_factor) return own / c.factor;
  if (wavelength < c.original_context / c.high_freq_factor) return own;
  if (c.low_freq_factor == c.high_freq_factor) return own;  // nothing between (Llama 4 Scout)
  const double s = (c.original_context / wavelength - c.low_freq_factor) /
                   (c.high_freq_factor - c.low_freq_factor);
  return (1 - s) * own / c.factor + s * own;
}

Result<void> check_config(const RopeConfig& config, std::int64_t positions) {
  if (config.dim < 2 || config.dim % 2 != 0) {
    return wrong("rope.dim", "an even number of 2 or more", config.dim);
  }
  // In this form a NaN fails, here and below.
  if (!(config.theta > 1) || std::isinf(config.theta)) {
    return wrong("rope.theta", "a finite number above 1", config.theta);
  }
  if (config.pairs && (*config.pairs < 0 || *config.pairs > config.dim / 2)) {
    return wrong("rope.pairs", "0 to half of rope.dim", *config.pairs);
  }
  if (positions < 0 || positions > std::int64_t{std::numeric_limits<std::int32_t>::max()}) {
    return wrong("rope.positions", "0 to 2^31 - 1", static_cast<double>(positions));
  }
  if (!(config.linear_factor >= 1) || std::isinf(config.linear_factor)) {
    return wrong("rope.linear_factor", "a finite number of 1 or more", config.linear_factor);
  }
  const int scalings = int{config.yarn.has_value()} + int{config.llama3.has_value()} +
                       int{config.linear_factor > 1} + int{config.longrope.has_value()} +
                       int{config.dynamic.has_value()};
  if (scalings > 1) return wrong("rope", "one scaling at most", scalings);
  if (config.f32_angles && scalings > (config.yarn ? 1 : 0)) {
    return wrong("rope", "YaRN or no scaling with angles in f32", scalings);
  }
  if (config.growth && (!(config.growth->beta >= 0) || !(config.growth->context > 0) ||
                        !(config.growth->shift >= 0) || std::isinf(config.growth->beta))) {
    return wrong("rope.growth", "a finite beta of 0 or more over a positive context",
                 config.growth->beta);
  }
  if (config.llama3) return check_llama3(*config.llama3);
  if (config.longrope) return check_longrope(*config.longrope, config.dim);
  if (config.dynamic) return check_dynamic(*config.dynamic, config.dim);
  if (!config.yarn) return {};
  const YarnConfig& yarn = *config.yarn;
  if (!(yarn.factor >= 1) || std::isinf(yarn.factor)) {
    return wrong("rope.yarn.factor", "a finite number of 1 or more", yarn.factor);
  }
  if (!(yarn.original_context > 0) || std::isinf(yarn.original_context)) {
    return wrong("rope.yarn.original_context", "a positive number of tokens",
                 yarn.original_context);
  }
  if (!(yarn.beta_slow > 0)) {
    return wrong("rope.yarn.beta_slow", "a positive number of rotations", yarn.beta_slow);
  }
  if (!(yarn.beta_fast >= yarn.beta_slow) || std::isinf(yarn.beta_fast)) {
    return wrong("rope.yarn.beta_fast", "a finite number of beta_slow or more", yarn.beta_fast);
  }
  if (!std::isfinite(yarn.mscale) || yarn.mscale < 0) {
    return wrong("rope.yarn.mscale", "a finite number of 0 or more", yarn.mscale);
  }
  if (!std::isfinite(yarn.mscale_all_dim) || yarn.mscale_all_dim < 0) {
    return wrong("rope.yarn.mscale_all_dim", "a finite number of 0 or more", yarn.mscale_all_dim);
  }
  const double factor = yarn.attention_factor.value_or(1);
  if (!(factor > 0) || std::isinf(factor)) {
    return wrong("rope.yarn.attention_factor", "a positive number", factor);
  }
  return {};
}

// The same operations in the same order as the model's own code.
std::vector<double> f32_frequencies(const RopeConfig& config) {
  YarnRange range;
  if (config.yarn) range = yarn_range(config.dim, config.theta, *config.yarn);
  const auto width = static_cast<float>(range.high == range.low ? 0.001 : range.high - range.low);
  std::vector<double> out;
  for (std::int32_t i = 0; i < config.dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.dim);
    const float own = 1 / static_cast<float>(std::pow(config.theta, double{exponent}));
    if (!config.yarn) {
      out.push_back(own);
      continue;
    }
    const float ramp = (static_cast<float>(i) - static_cast<float>(range.low)) / width;
    const float kept = 1 - std::clamp(ramp, 0.0f, 1.0f);
    const float divided = own / static_cast<float>(config.yarn->factor) * (1 - kept);
    out.push_back(divided + own * kept);
  }
  return out;
}

std::vector<double> exact_frequencies(const RopeConfig& config, std::int64_t positions) {
  std::vector<double> out;
  const bool is_long = rope_is_long(config, positions);
  double theta = config.theta;
  if (config.dynamic && is_long) {
    const double f = config.dynamic->factor, dim = config.dim;
    theta *= std::pow(f * f - (f - 1), dim / (dim - 2));
  }
  YarnRange range;
  if (config.yarn) range = yarn_range(config.dim, config.theta, *config.yarn);
  // If both ends are equal the ramp is a step. DeepSeek's code uses the same width.
  const double width = range.high == range.low ? 0.001 : range.high - range.low;
  for (std::int32_t i = 0; i < config.dim / 2; ++i) {
    const double own = std::pow(theta, -2.0 * i / config.dim);
    if (config.longrope) {
      const LongRopeConfig& c = *config.longrope;
      out.push_back(own /
                    (is_long ? c.long_factors : c.short_factors)[static_cast<std::size_t>(i)]);
      continue;
    }
    if (config.llama3) {
      out.push_back(llama3_frequency(own, *config.llama3));
      continue;
    }
    if (!config.yarn) {
      out.push_back(own / config.linear_factor);
      continue;
    }
    const double divided = std::clamp((i - range.low) / width, 0.0, 1.0);
    out.push_back(own * (1 - divided) + own / config.yarn->factor * divided);
  }
  return out;
}

}  // namespace

YarnRange yarn_range(std::int32_t dim, double theta, const YarnConfig& yarn) {
  const double context = yarn.original_context;
  double low = pair_of_turns(dim, theta, context, yarn.beta_fast);
  double high = pair_of_turns(dim, theta, context, yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  return {std::max(low, 0.0), std::min(high, static_cast<double>(dim - 1))};
}

double rope_magnitude(const RopeConfig& config) {
  if (config.longrope) return config.longrope->attention_factor;
  if (!config.yarn) return 1;
  const YarnConfig& yarn = *config.yarn;
  if (yarn.attention_factor) return *yarn.attention_factor;
  return yarn_mscale(yarn.factor, yarn.mscale) / yarn_mscale(yarn.factor, yarn.mscale_all_dim);
}

bool rope_is_long(const RopeConfig& config, std::int64_t positions) {
  const auto beyond = [&](double context) { return static_cast<double>(positions) > context; };
  return (config.longrope && beyond(config.longrope->original_context)) ||
         (config.dynamic && beyond(config.dynamic->original_context));
}

std::vector<double> rope_frequencies(const RopeConfig& config, std::int64_t positions) {
  std::vector<double> out =
      config.f32_angles ? f32_frequencies(config) : exact_frequencies(config, positions);
  std::fill(out.begin() + config.pairs.value_or(config.dim / 2), out.end(), 0.0);
  return out;
}

struct RopeTable::Rows {
  Rows(const RopeConfig& its_config, std::int64_t its_positions)
      : config(its_config),
        positions(its_positions),
        frequencies(rope_frequencies(config, positions)),
        magnitude(rope_magnitude(config)),
        // Not set, so that the system gives no memory for rows that nobody uses.
        values(new float[static_cast<std::size_t>(positions * config.dim)]),
        ready(static_cast<std::size_t>((positions + kBlock - 1) / kBlock)) {}

  static constexpr std::int64_t kBlock = 64;  // positions

  void need(std::int64_t block) {
    std::atomic<bool>& done = ready[static_cast<std::size_t>(block)];
    if (done.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex);
    if (done.load(std::memory_order_relaxed)) return;
    fill(block * kBlock, std::min(positions, (block + 1) * kBlock));
    done.store(true, std::memory_order_release);
  }

  double angle(std::int64_t p, double f) const {
    return config.f32_angles ? double{static_cast<float>(p) * static_cast<float>(f)}
                             : static_cast<double>(p) * f;
  }

  double magnitude_at(std::int64_t p) const {
    if (!config.growth) return magnitude;
    const double contexts =
        std::floor((static_cast<double>(p) + config.growth->shift) / config.growth->context);
    return magnitude * (1 + config.growth->beta * std::log(1 + contexts));
  }

  void fill(std::int64_t begin, std::int64_t end) {
    float* at = values.get() + begin * config.dim;
    for (std::int64_t p = begin; p < end; ++p) {
      const double by = magnitude_at(p);
      for (double f : frequencies) *at++ = static_cast<float>(std::cos(angle(p, f)) * by);
      for (double f : frequencies) *at++ = static_cast<float>(std::sin(angle(p, f)) * by);
    }
  }

  const RopeConfig config;
  const std::int64_t positions;
  const std::vector<double> frequencies;
  const double magnitude;
  const std::unique_ptr<float[]> values;  // [positions, dim]
  std::vector<std::atomic<bool>> ready;   // [blocks]
  std::mutex mutex;                       // of those that fill
};

RopeTable::RopeTable(const RopeConfig& config, std::int64_t positions)
    : config_(config), positions_(positions), rows_(std::make_shared<Rows>(config, positions)) {
  static std::atomic<std::uint64_t> made{0};
  id_ = ++made;
}

Result<RopeTable> RopeTable::make(const RopeConfig& config, std::int64_t positions) {
  if (auto ok = check_config(config, positions); !ok) return ok.error();
  return RopeTable(config, positions);
}

std::span<const float> RopeTable::data() const {
  for (std::int64_t block = 0; block < std::ssize(rows_->ready); ++block) rows_->need(block);
  return {rows_->values.get(), static_cast<std::size_t>(positions_ * dim())};
}

const float* RopeTable::rows(std::span<const LocalPos> positions) const {
  for (const LocalPos p : positions) {
    if (p.value >= 0) rows_->need(p.value / Rows::kBlock);
  }
  return rows_->values.get();
}

void rotate_row(const RopeTable& table, LocalPos p, RopeDirection direction, float* x) {
  const auto no_nan_bits = [](float v) {
    return std::isnan(v) ? std::numeric_limits<float>::quiet_NaN() : v;
  };
  const std::int32_t half = table.dim() / 2;
  const bool interleaved = table.config().pairing == RopePairing::interleaved;
  for (std::int32_t i = 0; i < half; ++i) {
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const float c = table.cos(p)[i];
    const float s = direction == RopeDirection::forward ? table.sin(p)[i] : -table.sin(p)[i];
    const float turned_a = a * c - b * s;
    const float turned_b = a * s + b * c;
    a = no_nan_bits(turned_a);
    b = no_nan_bits(turned_b);
  }
}

Result<void> check_positions(const char* field, std::span<const LocalPos> positions,
                             const RopeTable& table) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i].is_hole() || table.holds(positions[i])) continue;
    return Error{ErrorCode::out_of_range, fmt::format("{}[{}]", field, i),
                 fmt::format("-1 or 0 to {}", table.positions() - 1),
                 fmt::format("{}", positions[i].value),
                 "make the table for the longest context (RopeTable::make)"};
  }
  return {};
}

Result<void> apply_rope(const RopeTable& table, std::span<const LocalPos> positions,
                        const MutableRowsView& rows, std::int64_t heads, std::int64_t first,
                        RopeDirection direction, CodecPath path) {
  const RowsView view = read_only(rows);
  if (auto ok = check_apply_rope(view, std::ssize(positions), table.dim(), heads, first); !ok) {
    return ok;
  }
  if (auto ok = check_positions("positions", positions, table); !ok) return ok;
  rotate({view, rows, positions, &table, heads, first, direction, 1}, path);
  return {};
}

}  // namespace lathe
