#include "layout/layout.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>

namespace lathe {
namespace {

constexpr std::array kAllDims = {&LayoutDims::nope,     &LayoutDims::rope,
                                 &LayoutDims::dim,      &LayoutDims::kv_heads,
                                 &LayoutDims::head_dim, &LayoutDims::v_head_dim};

Error malformed(std::string_view wanted, std::string_view offered) {
  return {ErrorCode::malformed, "layout", std::string(wanted), std::string(offered),
          "for example mla_fp8_block(nope=512,rope=64,scale=pow2_ceil)"};
}

}  // namespace

Result<CacheLayout> CacheLayout::make(LayoutKind kind, LayoutDims dims, ScalePolicy policy) {
  const std::span<const DimRule> rules = dim_rules(kind);
  for (std::int32_t LayoutDims::*field : kAllDims) {
    const DimRule* rule = nullptr;
    for (const DimRule& r : rules) {
      if (r.field == field) rule = &r;
    }
    const std::int32_t got = dims.*field;
    if (rule == nullptr) {
      if (got == 0) continue;
      std::string keys;
      for (const DimRule& r : rules) keys += (keys.empty() ? "" : ", ") + std::string(r.key);
      return Error{ErrorCode::invalid_argument, fmt::format("dims of {}", lathe::name(kind)),
                   fmt::format("{} only", keys), fmt::format("a dim it does not have, {}", got),
                   ""};
    }
    if (got < rule->min || got > rule->max || got % rule->multiple != 0) {
      return Error{
          ErrorCode::invalid_argument, fmt::format("{} of {}", rule->key, lathe::name(kind)),
          fmt::format("a multiple of {} from {} to {}", rule->multiple, rule->min, rule->max),
          fmt::format("{}", got), fmt::format("the default is {}", default_dims(kind).*field)};
    }
  }
  const EnumSet<ScalePolicy> policies = layout_row(kind).policies;
  if (!policies.contains(policy)) {
    return Error{ErrorCode::invalid_argument, fmt::format("scale of {}", lathe::name(kind)),
                 policies.names(), std::string(lathe::name(policy)), ""};
  }
  return CacheLayout(kind, dims, policy);
}

std::string CacheLayout::serialize() const {
  std::string out(name());
  out += '(';
  for (const DimRule& r : dim_rules(kind_)) out += fmt::format("{}={},", r.key, dims_.*r.field);
  out += fmt::format("scale={})", lathe::name(policy_));
  return out;
}

std::uint64_t CacheLayout::hash() const {
  const std::string text = serialize();
  return XXH3_64bits(text.data(), text.size());
}

Result<CacheLayout> CacheLayout::parse(std::string_view text) {
  const std::size_t open = text.find('(');
  const std::string_view kind_name = text.substr(0, open);
  const auto kind = parse_enum<LayoutKind>(kind_name);
  if (!kind) {
    return Error{ErrorCode::malformed, "layout", "one of " + known_names<LayoutKind>(),
                 fmt::format("\"{}\"", kind_name), ""};
  }
  LayoutDims dims = default_dims(*kind);
  ScalePolicy policy = default_policy(*kind);
  if (open == std::string_view::npos) return make(*kind, dims, policy);
  if (text.back() != ')') return malformed("a closing )", text);

  std::string_view rest = text.substr(open + 1, text.size() - open - 2);
  std::string seen;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    if (comma != std::string_view::npos && rest.empty())
      return malformed("key=value after ,", text);
    const std::size_t eq = item.find('=');
    if (eq == std::string_view::npos) return malformed("key=value", item);
    const std::string_view key = item.substr(0, eq);
    const std::string_view value = item.substr(eq + 1);
    const std::string mark = fmt::format(",{},", key);
    if (seen.find(mark) != std::string::npos) return malformed("each key once", item);
    seen += mark;

    if (key == "scale") {
      const auto p = parse_enum<ScalePolicy>(value);
      if (!p) return malformed("scale from " + known_names<ScalePolicy>(), item);
      policy = *p;
      continue;
    }
    const DimRule* rule = nullptr;
    std::string keys;
    for (const DimRule& r : dim_rules(*kind)) {
      if (r.key == key) rule = &r;
      keys += std::string(r.key) + ", ";
    }
    if (rule == nullptr) return malformed(fmt::format("keys {}scale", keys), item);
    std::int32_t number = 0;
    const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (ec != std::errc{} || end != value.data() + value.size()) {
      return malformed(fmt::format("{} as an integer", key), item);
    }
    dims.*(rule->field) = number;
  }
  // The default of v_head_dim is head_dim.
  if (seen.find(",v_head_dim,") == std::string::npos && dims.v_head_dim != 0) {
    dims.v_head_dim = dims.head_dim;
  }
  return make(*kind, dims, policy);
}

Result<void> check_page_size(std::int32_t page_size) {
  if (page_size >= 1 && page_size <= kMaxPageSize) return {};
  return Error{ErrorCode::invalid_argument, "page_size", fmt::format("1 to {}", kMaxPageSize),
               fmt::format("{}", page_size), "try 64"};
}

}  // namespace lathe
