#include "server/grammar/schema/number_rules.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace lathe::grammar {
namespace {

// A multiple of `modulus` / 10^`places`.
struct Step {
  std::uint64_t modulus = 1;
  std::size_t places = 0;
};

std::optional<std::uint64_t> scaled(const Decimal& value, std::size_t places) {
  std::string digits = value.whole + value.fraction;
  digits.append(places - value.fraction.size(), '0');
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.size() > 18) return std::nullopt;
  return digits.empty() ? 0 : std::stoull(digits);
}

// The least common multiple of the steps. nullopt: too large. Integers need a multiple of
// modulus / gcd(modulus, 10^places).
std::optional<Step> step_of(const Numbers& numbers) {
  Step out;
  for (const Decimal& s : numbers.steps) out.places = std::max(out.places, s.fraction.size());
  for (const Decimal& s : numbers.steps) {
    const auto units = scaled(s, out.places);
    if (!units || *units == 0 || *units > std::uint64_t{1} << 31) return std::nullopt;
    out.modulus = std::lcm(out.modulus, *units);
    if (out.modulus > std::uint64_t{1} << 31) return std::nullopt;
  }
  if (numbers.kind == Numbers::Kind::integer) {
    for (; out.places > 0; --out.places) {
      for (const std::uint64_t factor : {2u, 5u}) {
        if (out.modulus % factor == 0) out.modulus /= factor;
      }
    }
  }
  if (out.modulus > kMostRemainders) return std::nullopt;
  return out;
}

int digit_at(const std::string& digits, std::size_t i) {
  return i < digits.size() ? digits[i] - '0' : 0;
}

constexpr std::size_t kDoubleDigits = 15;  // that a double always keeps
constexpr std::size_t kFractionWhole = 9;  // digits before the point of a number with a fraction

// Numbers without a sign, digit by digit. A state knows whether the digits so far are the first
// ones of a bound: then the bound limits the next digit.
class Magnitudes {
 public:
  struct Bounds {
    Decimal least;  // not negative
    bool above = false;
    std::optional<Decimal> most;
    bool below = false;
  };

  Magnitudes(Builder& b, Bounds bounds, Numbers::Kind kind, Step step, bool steps, State to)
      : b_(b), bounds_(std::move(bounds)), kind_(kind), step_(step), to_(to) {
    low_ = bounds_.least.whole.empty() ? "0" : bounds_.least.whole;
    if (bounds_.most) high_ = bounds_.most->whole.empty() ? "0" : bounds_.most->whole;
    most_digits_ = bounds_.most ? high_.size() : std::max(kMostDigits, low_.size() + 1);
    const std::size_t told =
        std::max(bounds_.least.fraction.size(), bounds_.most ? bounds_.most->fraction.size() : 0);
    // With few enough digits that a double near a bound keeps to its side.
    const std::size_t whole = std::min((bounds_.most ? high_ : low_).size(), kDoubleDigits);
    most_places_ = std::max(kDoubleDigits - whole, told + 1);
    if (kind_ == Numbers::Kind::fraction) {  // which a double must not round away
      most_places_ = kDoubleDigits - kFractionWhole;
      most_digits_ = std::min(most_digits_, kFractionWhole);
    }
    if (steps) most_places_ = step_.places;
    if (kind_ == Numbers::Kind::integer) most_places_ = 0;
  }

  void add(State from) {
    for (std::size_t n = low_.size(); n <= most_digits_ && !b_.full(); ++n) {
      const At at{n, n, n == low_.size(), bounds_.most && n == high_.size(), 0, false};
      add_digits(from, at, n > 1 ? 1 : 0);
    }
  }

 private:
  struct At {
    std::size_t digits;  // before the point; 0: after it
    std::size_t left;    // digits before the point; after it: those read
    bool low, high;      // equal to the bound so far
    std::uint64_t rest;  // of the division by the modulus
    bool fraction;       // a digit after the point is not 0
    auto operator<=>(const At&) const = default;
  };

  // The state at `at`, made on first use.
  State state_of(At at, State near) {
    // The digits so far do not matter to numbers between the bounds.
    if (at.digits > 0 && !at.low && !at.high) at.digits = std::max<std::size_t>(at.left, 1);
    const auto [it, fresh] = states_.try_emplace(at, 0);
    if (!fresh) return it->second;
    const State s = b_.state(near);
    it->second = s;
    if (b_.full()) return s;
    if (at.digits > 0 && at.left > 0) {
      add_digits(s, at, 0);
    } else if (at.digits > 0) {
      if (may_end(at)) b_.skip(s, to_);
      if (most_places_ > 0) {
        const State point = b_.text(s, ".");
        add_digits(point, {0, 0, at.low, at.high, at.rest, false}, 0);
      }
    } else {
      if (may_end(at)) b_.skip(s, to_);
      if (at.left < most_places_) add_digits(s, at, 0);
    }
    return s;
  }

  bool may_end(const At& at) const {
    const std::size_t places = at.digits > 0 ? 0 : at.left;
    if (kind_ == Numbers::Kind::fraction && !at.fraction) return false;
    if (at.low && (bounds_.least.fraction.size() > places || bounds_.above)) return false;
    if (at.high && bounds_.most->fraction.size() <= places && bounds_.below) return false;
    std::uint64_t rest = at.rest;
    for (std::size_t i = places; i < step_.places; ++i) rest = rest * 10 % step_.modulus;
    return rest == 0;
  }

  void add_digits(State from, const At& at, int least) {
    const bool whole = at.digits > 0;
    const std::size_t i = whole ? at.digits - at.left : at.left;
    const int low = at.low ? digit_at(whole ? low_ : bounds_.least.fraction, i) : 0;
    const int high = at.high ? digit_at(whole ? high_ : bounds_.most->fraction, i) : 9;
    State last = from;
    int begin = std::max(low, least);
    const auto flush = [&](int end) {
      if (begin < end) {
        b_.bytes(from, static_cast<std::uint8_t>('0' + begin),
                 static_cast<std::uint8_t>('0' + end - 1), last);
      }
      begin = end;
    };
    for (int d = begin; d <= high && !b_.full(); ++d) {
      At next = at;
      next.left = whole ? at.left - 1 : at.left + 1;
      next.low = at.low && d == low;
      next.high = at.high && d == high;
      next.rest = (at.rest * 10 + static_cast<std::uint64_t>(d)) % step_.modulus;
      next.fraction = kind_ == Numbers::Kind::fraction && !whole && (at.fraction || d != 0);
      const State to = state_of(next, from);
      if (to != last) flush(d);
      last = to;
    }
    flush(high + 1);
  }

  Builder& b_;
  Bounds bounds_;
  Numbers::Kind kind_;
  Step step_;
  State to_;
  std::string low_, high_;
  std::size_t most_digits_ = 0, most_places_ = 0;
  std::map<At, State> states_;
};

void add_within(Builder& b, State from, const Numbers& n, Step step, State to) {
  const Decimal zero;
  if (!n.most || *n.most >= zero) {
    Magnitudes::Bounds bounds{zero, false, n.most, n.below};
    if (n.least && *n.least >= zero) {
      bounds.least = *n.least;
      bounds.above = n.above;
    }
    Magnitudes(b, bounds, n.kind, step, !n.steps.empty(), to).add(from);
  }
  if (!n.least || *n.least < zero) {
    Magnitudes::Bounds bounds{zero, true, std::nullopt, false};
    if (n.least) bounds.most = n.least->magnitude();
    bounds.below = n.above;
    if (n.most && *n.most < zero) {
      bounds.least = n.most->magnitude();
      bounds.above = n.below;
    }
    Magnitudes(b, bounds, n.kind, step, !n.steps.empty(), to).add(b.text(from, "-"));
  }
}

}  // namespace

bool Numbers::none() const {
  if (!least || !most) return false;
  return *least > *most || (*least == *most && (above || below));
}

bool Numbers::all() const {
  return kind == Kind::any && !least && !most && steps.empty() && except.empty();
}

bool Numbers::allow(const Decimal& value) const {
  if (kind != Kind::any && value.is_integer() != (kind == Kind::integer)) return false;
  if (least && (value < *least || (above && value == *least))) return false;
  if (most && (value > *most || (below && value == *most))) return false;
  if (std::find(except.begin(), except.end(), value) != except.end()) return false;
  return std::all_of(steps.begin(), steps.end(), [&](const Decimal& step) {
    // Long division, digit by digit, in units of the step's last place.
    const auto units = scaled(step, step.fraction.size());
    if (!units || *units == 0 || *units > std::uint64_t{1} << 59) return false;
    if (value.fraction.size() > step.fraction.size()) return false;
    std::string digits = value.whole + value.fraction;
    digits.append(step.fraction.size() - value.fraction.size(), '0');
    std::uint64_t rest = 0;
    for (const char d : digits) rest = (rest * 10 + static_cast<std::uint64_t>(d - '0')) % *units;
    return rest == 0;
  });
}

bool can_follow_steps(const Numbers& numbers) { return step_of(numbers).has_value(); }

void add_numbers(Builder& b, State from, const Numbers& numbers, State to) {
  const Step step = step_of(numbers).value_or(Step{});
  // The ranges between the excluded values.
  std::vector<Decimal> gaps;
  for (const Decimal& e : numbers.except) {
    Numbers all = numbers;
    all.except.clear();
    if (all.allow(e)) gaps.push_back(e);
  }
  std::sort(gaps.begin(), gaps.end(), [](const Decimal& x, const Decimal& y) { return x < y; });
  Numbers range = numbers;
  for (const Decimal& gap : gaps) {
    range.most = gap;
    range.below = true;
    if (!range.none()) add_within(b, from, range, step, to);
    range.least = gap;
    range.above = true;
  }
  range.most = numbers.most;
  range.below = numbers.below;
  if (!range.none()) add_within(b, from, range, step, to);
}

}  // namespace lathe::grammar
