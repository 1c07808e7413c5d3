#include "model/config/config_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "io/text/quote.h"

namespace lathe {
namespace {

// Factors of pairs, in place of a list of them.
std::vector<double> parse_factors(ConfigReader& rope, std::string_view key) {
  std::vector<double> out = rope.numbers(key, kFactorRange);
  if (out.empty()) rope.refuse(key, "a list of factors", "nothing", ErrorCode::malformed);
  return out;
}

LongRopeConfig parse_longrope(ConfigReader& rope, double original, double max_context) {
  LongRopeConfig out;
  out.short_factors = parse_factors(rope, "short_factor");
  out.long_factors = parse_factors(rope, "long_factor");
  out.original_context = original;
  // transformers' value where the file gives none (modeling_rope_utils.py).
  const double factor = rope.number("factor", kRopeFactorRange, max_context / original);
  const bool grows = factor > 1 && original > 1;
  out.attention_factor =
      rope.number("attention_factor", kFactorRange,
                  grows ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1);
  return out;
}

YarnConfig parse_yarn(ConfigReader& rope, double original_context, bool unit_magnitude) {
  YarnConfig yarn;
  yarn.factor = rope.number("factor", kRopeFactorRange);
  yarn.original_context = original_context;
  // Some configurations write 0 for the published value.
  const auto turns = [&](std::string_view key, double published) {
    const double given = rope.number(key, kOptionalFactorRange, published);
    return given == 0 ? published : given;
  };
  yarn.beta_fast = turns("beta_fast", 32);
  yarn.beta_slow = turns("beta_slow", 1);
  yarn.truncate = rope.flag("truncate", true);
  if (unit_magnitude) {
    for (const std::string_view key : {"attention_factor", "mscale", "mscale_all_dim"}) {
      if (const double given = rope.number(key, kOptionalFactorRange, 1); given != 1) {
        rope.refuse(key, "1, which keeps the magnitude of cos and sin", fmt::format("{}", given));
      }
    }
    return yarn;
  }
  yarn.mscale = rope.number("mscale", kOptionalFactorRange, 0);
  yarn.mscale_all_dim = rope.number("mscale_all_dim", kOptionalFactorRange, 0);
  // The magnitude of cos and sin is m(mscale) / m(mscale_all_dim) if both are given, else m(1).
  // mscale_all_dim alone would scale attention, too, which these fields cannot express.
  if (yarn.mscale == 0 && yarn.mscale_all_dim != 0) {
    rope.refuse("mscale_all_dim", "mscale with it", "mscale_all_dim alone");
  }
  if (yarn.mscale == 0 || yarn.mscale_all_dim == 0) yarn.mscale = 1;
  if (rope.has("attention_factor")) {
    yarn.attention_factor = rope.number("attention_factor", kFactorRange);
  }
  return yarn;
}

// The JSON object with these layers' RoPE, if there is one.
std::optional<ConfigReader> rope_object(ConfigReader& json, const RopeKeys& keys) {
  if (!json.has("rope_parameters")) {
    return keys.scaled ? json.object("rope_scaling") : std::nullopt;
  }
  auto all = json.object("rope_parameters");
  if (!all || keys.layer_type.empty() || !all->has(keys.layer_type)) return all;
  auto own = all->object(keys.layer_type);
  json.adopt(*all);
  return own;
}

std::string type_of(ConfigReader& rope) {
  const std::string type = rope.text(rope.first_of({"rope_type", "type"}), "default");
  return type == "deepseek_yarn" ? "yarn" : type;  // Sarvam's name of it
}

// Without a type transformers rotates as if these were not there.
void check_typed(ConfigReader& rope) {
  if (rope.has("rope_type") || rope.has("type")) return;
  for (const std::string_view key :
       {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
        "short_factor", "long_factor", "low_freq_factor", "high_freq_factor"}) {
    if (!rope.has(key)) continue;
    rope.refuse("rope_type", fmt::format("a type, as {} is given", key), "nothing",
                ErrorCode::malformed, "--rope-scaling JSON gives one");
  }
}

// Defaults for missing keys.
struct RopeDefaults {
  RopeConfig rope;
  double partial = 1;
  double max_context = 0;
  std::optional<double> original_context =
      std::nullopt;  // of the whole file: overrides the object's
  bool unit_magnitude = false;
  bool of_heads = false;    // of grouped-query attention
  bool reads_share = true;  // partial_rotary_factor
};

// `partial` receives the share of a head's elements that rotate.
RopeConfig read_rope(ConfigReader& rope, const RopeDefaults& defaults, double& partial) {
  RopeConfig out = defaults.rope;
  out.theta = rope.number("rope_theta", kThetaRange, out.theta);
  partial = defaults.reads_share
                ? rope.number("partial_rotary_factor", kShareRange, defaults.partial)
                : defaults.partial;
  check_typed(rope);
  const std::string type = type_of(rope);
  const double own =
      rope.number("original_max_position_embeddings", kContextRange, defaults.max_context);
  const double original = defaults.original_context.value_or(own);
  if (defaults.unit_magnitude && type != "default" && type != "yarn") {
    rope.refuse(rope.first_of({"rope_type", "type"}), "default or yarn, which DeepSeek V4 has",
                quote(type), ErrorCode::unsupported, "--rope-scaling JSON gives another");
  } else if (type == "yarn") {
    out.yarn = parse_yarn(rope, original, defaults.unit_magnitude);
  } else if (type == "longrope" || type == "su") {  // Phi 3's first name of it
    out.longrope = parse_longrope(rope, original, defaults.max_context);
  } else if (type == "dynamic") {
    // transformers and vLLM extend max_position_embeddings, whatever the original context.
    out.dynamic = DynamicRopeConfig{rope.number("factor", kRopeFactorRange), defaults.max_context};
  } else if (type == "llama3") {
    out.llama3 = Llama3RopeConfig{rope.number("factor", kRopeFactorRange), original,
                                  rope.number("low_freq_factor", kFactorRange),
                                  rope.number("high_freq_factor", kFactorRange)};
  } else if (type == "linear") {
    out.linear_factor = rope.number("factor", kRopeFactorRange);
  } else if (type == "proportional" && defaults.of_heads) {
    // The frequencies of a head that rotates as a whole, of which the first ones count.
    out.linear_factor = rope.number("factor", kRopeFactorRange, 1);
    const auto pairs = static_cast<std::int32_t>(std::floor(out.dim * partial / 2));
    if (pairs < out.dim / 2) out.pairs = pairs;
    partial = 1;
  } else if (type != "default") {
    rope.refuse(rope.first_of({"rope_type", "type"}),
                fmt::format("default, linear, dynamic, llama3, yarn{}",
                            defaults.of_heads ? ", longrope or proportional" : " or longrope"),
                quote(type), ErrorCode::unsupported, "--rope-scaling JSON gives another");
  }
  return out;
}

// A file with both spellings has been edited. Nothing says which one the weights were trained with,
// and readers disagree.
void check_spellings(ConfigReader& json, ConfigReader& rope, const RopeConfig& chosen,
                     const RopeDefaults& defaults, const RopeKeys& keys) {
  if (!keys.scaled || !json.has("rope_parameters")) return;
  auto older = json.object("rope_scaling");
  if (!older) return;
  RopeDefaults silent = defaults;
  silent.rope.theta = chosen.theta;  // the older spelling keeps it elsewhere
  double partial = 1;
  const RopeConfig other = read_rope(*older, silent, partial);
  json.adopt(*older);
  if (json.error() || other == chosen) return;
  json.refuse("rope_scaling",
              fmt::format("what rope_parameters says (rope_type {}), or no rope_scaling",
                          quote(type_of(rope))),
              fmt::format("another RoPE (rope_type {})", quote(type_of(*older))),
              ErrorCode::malformed, "delete the one that is wrong");
}

// A key that the file and its object of all layers' RoPE both have. A flag's object wins over the
// file's key.
void check_top_level(ConfigReader& json, ConfigReader& rope, std::string_view key,
                     const ConfigRange& range) {
  if (!json.has(key) || !rope.has(key)) return;
  if (rope.from_flag(key) && !json.from_flag(key)) return;
  const double top = json.number(key, range), own = rope.number(key, range);
  if (top == own) return;
  json.refuse(key, fmt::format("{}, as the object of the RoPE says, or no {}", own, key),
              fmt::format("{}", top), ErrorCode::malformed, "delete the one that is wrong");
}

// Elements of a head of `dim` that rotate: as many as partial_rotary_factor or rotary_dim says.
std::int32_t rotary_dim(ConfigReader& json, std::int32_t dim, double partial) {
  const auto by_factor = static_cast<std::int32_t>(dim * partial);
  if (by_factor < 1) {
    json.refuse("partial_rotary_factor", fmt::format("a share of at least 1 of {} elements", dim),
                fmt::format("{}", partial));
    return dim;
  }
  const std::int32_t out = json.integer("rotary_dim", by_factor, 1, dim);
  if (partial != 1 && out != by_factor) {
    json.refuse("rotary_dim", fmt::format("{}, as partial_rotary_factor says", by_factor),
                fmt::format("{}", out), ErrorCode::malformed);
  }
  return out;
}

}  // namespace

RopeConfig parse_rope(ConfigReader& json, std::int32_t dim, RopePairing pairing,
                      const RopeKeys& keys) {
  RopeDefaults defaults{.rope = {.dim = dim, .pairing = pairing}};
  defaults.max_context =
      json.integer(json.first_of({"max_position_embeddings", "model_max_length"}));
  defaults.rope.theta = json.number(keys.theta, kThetaRange, keys.default_theta);
  auto rope = rope_object(json, keys);
  const bool plain = rope ? type_of(*rope) == "default" : !keys.default_yarn;
  constexpr std::string_view kShare = "partial_rotary_factor";
  const bool whole = keys.of_heads && !keys.reads_share;
  defaults.reads_share = !(whole && plain);
  defaults.partial = !defaults.reads_share ? 1 : json.number(kShare, kShareRange, keys.partial);
  defaults.unit_magnitude = keys.unit_magnitude;
  defaults.of_heads = keys.of_heads;
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  if (keys.layer_type.empty() && json.has(kOriginal)) {
    defaults.original_context = json.number(kOriginal, kContextRange);
  }
  RopeConfig out = defaults.rope;
  if (!rope) out.yarn = keys.default_yarn;
  double partial = defaults.partial;
  if (rope) {
    out = read_rope(*rope, defaults, partial);
    json.adopt(*rope);
    check_spellings(json, *rope, out, defaults, keys);
    if (keys.layer_type.empty()) {
      check_top_level(json, *rope, keys.theta, kThetaRange);
      if (!whole) check_top_level(json, *rope, kShare, kShareRange);
    }
  }
  if (keys.reads_share) {
    out.dim = rotary_dim(json, dim, partial);
  } else if (keys.of_heads) {
    if (partial != 1 && !plain) {
      json.refuse(kShare, "1: whole heads of this architecture rotate", fmt::format("{}", partial));
    }
  } else if (partial != keys.partial) {
    json.refuse(kShare,
                keys.partial == 1 ? "1: every element of a head's rotary part rotates"
                                  : fmt::format("{}: {} elements of a head", keys.partial, dim),
                std::to_string(partial));
  }
  // Check what the tables would reject, so that the error names the user's key.
  if (!json.error()) {
    if (const auto table = RopeTable::make(out, 0); !table) {
      const Error& e = table.error();
      if (e.field == "rope.theta") {
        json.refuse(keys.theta, e.wanted, e.offered, e.code);
      } else if (e.field == "rope.dim") {
        json.refuse(!keys.of_heads   ? "qk_rope_head_dim"
                    : out.dim == dim ? "head_dim"
                                     : kShare,
                    "a rotary part of " + e.wanted, e.offered, e.code);
      } else {
        json.refuse("rope_parameters", e.field + " " + e.wanted, e.offered, e.code);
      }
    }
  }
  return out;
}

std::int32_t scaled_context(const RopeConfig& rope) {
  double tokens = 0;
  if (rope.yarn) tokens = rope.yarn->original_context * rope.yarn->factor;
  if (rope.dynamic) tokens = rope.dynamic->original_context * rope.dynamic->factor;
  return static_cast<std::int32_t>(std::clamp(tokens, 0.0, double{ConfigReader::kMaxCount}));
}

double yarn_attention_factor(const RopeConfig& rope) {
  if (!rope.yarn || rope.yarn->factor <= 1) return 1;
  const double m = 0.1 * rope.yarn->mscale_all_dim * std::log(rope.yarn->factor) + 1;
  return m * m;
}

}  // namespace lathe
