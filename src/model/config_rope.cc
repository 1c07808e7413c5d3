#include "model/config_rope.h"

#include <cmath>

#include "io/quote.h"

namespace lathe {
namespace {

YarnConfig parse_yarn(ConfigReader& rope, double original_context) {
  YarnConfig yarn;
  yarn.factor = rope.number("factor");
  yarn.original_context = original_context;
  // Configurations write 0 for "as published", too.
  const auto turns = [&](std::string_view key, double published) {
    const double given = rope.number(key, published);
    return given == 0 ? published : given;
  };
  yarn.beta_fast = turns("beta_fast", 32);
  yarn.beta_slow = turns("beta_slow", 1);
  yarn.mscale = rope.number("mscale", 0);
  yarn.mscale_all_dim = rope.number("mscale_all_dim", 0);
  // The magnitude of cos and sin is m(mscale) / m(mscale_all_dim) where both are given, else m(1).
  // mscale_all_dim alone still scales attention, which one pair of numbers cannot say.
  if (yarn.mscale == 0 && yarn.mscale_all_dim != 0) {
    rope.refuse("mscale_all_dim", "mscale beside it", "mscale_all_dim alone");
  }
  if (yarn.mscale == 0 || yarn.mscale_all_dim == 0) yarn.mscale = 1;
  rope.absent("attention_factor", "nothing: the factor follows from `factor` and mscale");
  yarn.truncate = rope.flag("truncate", true);
  return yarn;
}

// The object that describes these layers' RoPE, if there is one.
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

}  // namespace

RopeConfig parse_rope(ConfigReader& json, std::int32_t dim, RopePairing pairing,
                      const RopeKeys& keys) {
  RopeConfig out{.dim = dim, .pairing = pairing};
  const double max_context = json.integer("max_position_embeddings");
  const double top_theta = json.number(keys.theta, keys.default_theta);
  const double top_partial = json.number("partial_rotary_factor", 1);
  auto rope = rope_object(json, keys);
  double partial = top_partial;
  out.theta = top_theta;
  if (rope) {
    out.theta = rope->number("rope_theta", top_theta);
    partial = rope->number("partial_rotary_factor", top_partial);
    const std::string type = rope->text(rope->first_of({"rope_type", "type"}), "default");
    const double original = rope->number("original_max_position_embeddings", max_context);
    if (type == "yarn") {
      out.yarn = parse_yarn(*rope, original);
    } else if (type == "llama3") {
      out.llama3 =
          Llama3RopeConfig{rope->number("factor"), original, rope->number("low_freq_factor"),
                           rope->number("high_freq_factor")};
    } else if (type == "linear") {
      out.linear_factor = rope->number("factor");
    } else if (type != "default") {
      rope->refuse(rope->first_of({"rope_type", "type"}), "default, linear, llama3 or yarn",
                   quote(type));
    }
    json.adopt(*rope);
  }
  if (partial != 1) {
    json.refuse("partial_rotary_factor", "1: every element of a head's rotary part turns",
                std::to_string(partial));
  }
  // What the tables will refuse, at the place where the user can change it.
  if (!json.error()) {
    if (const auto table = RopeTable::make(out, 0); !table) {
      const Error& e = table.error();
      json.refuse("rope_parameters", e.field + " " + e.wanted, e.offered, e.code);
    }
  }
  return out;
}

double yarn_attention_factor(const RopeConfig& rope) {
  if (!rope.yarn || rope.yarn->factor <= 1) return 1;
  const double m = 0.1 * rope.yarn->mscale_all_dim * std::log(rope.yarn->factor) + 1;
  return m * m;
}

}  // namespace lathe
