#include "model/weights/kv_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/files/read_file.h"
#include "io/text/json_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

constexpr float kLargestE4m3 = 448;
constexpr float kRoom = 2;
constexpr float kLeast = 0x1p-126f;
constexpr float kMost = 0x1p126f;

std::string range(std::span<const TensorScales> scales, float TensorScales::*part) {
  const auto less = [&](const TensorScales& a, const TensorScales& b) { return a.*part < b.*part; };
  const float low = (*std::min_element(scales.begin(), scales.end(), less)).*part;
  const float high = (*std::max_element(scales.begin(), scales.end(), less)).*part;
  return low == high ? fmt::format("{}", low) : fmt::format("{} to {}", low, high);
}

// Reads one list of the file into the scales.
Result<void> read_part(const nlohmann::json& j, const std::string& path, const char* key,
                       float TensorScales::*part, std::vector<TensorScales>& out) {
  const std::string place = fmt::format("{}: {}", path, key);
  const auto it = j.find(key);
  if (it == j.end() || !it->is_array() || it->size() != out.size()) {
    const std::string offered = it == j.end()     ? "nothing"
                                : !it->is_array() ? json_excerpt(*it)
                                                  : fmt::format("{}", it->size());
    return Error{ErrorCode::malformed, place,
                 fmt::format("{} scales, one per layer of the model", out.size()), offered,
                 "lathe calibrate writes such a file"};
  }
  for (std::size_t l = 0; l < out.size(); ++l) {
    const nlohmann::json& v = (*it)[l];
    const double scale = v.is_number() ? v.get<double>() : 0;
    if (!(scale >= kLeast && scale <= kMost)) {
      return Error{ErrorCode::malformed, fmt::format("{}[{}]", place, l),
                   "a scale from 2^-126 to 2^126", json_excerpt(v), ""};
    }
    out[l].*part = static_cast<float>(scale);
  }
  return {};
}

}  // namespace

bool has_tensor_scales(const ModelPlan& plan) {
  return std::any_of(plan.groups.begin(), plan.groups.end(), [](const GroupPlan& g) {
    return g.plan.main().layout.scale_policy() == ScalePolicy::per_tensor;
  });
}

float scale_for(float largest) {
  if (!(largest > 0)) return 1;
  int exponent = 0;
  const float mantissa = std::frexp(largest * kRoom / kLargestE4m3, &exponent);
  return std::clamp(std::ldexp(1.0f, mantissa == 0.5f ? exponent - 1 : exponent), kLeast, kMost);
}

std::string kv_scales_text(const ModelConfig& config, std::span<const TensorScales> scales) {
  nlohmann::ordered_json j = {{"architecture", config.architecture}, {"key", {}}};
  for (const TensorScales& s : scales) {
    j["key"].push_back(s.key);
    if (!config.is_mla()) j["value"].push_back(s.value);
  }
  return json_text(j, 1) + "\n";
}

Result<std::vector<TensorScales>> read_kv_scales(const std::string& path,
                                                 const ModelConfig& config) {
  const auto text = read_flag_file("--kv-scales", path);
  if (!text) return text.error();
  const auto json = parse_json(*text, path);
  if (!json) return json.error();
  const auto wrong = [&](const char* key, std::string wanted, std::string offered) {
    return Error{ErrorCode::malformed, path + (*key != 0 ? std::string(": ") + key : ""),
                 std::move(wanted), std::move(offered), "lathe calibrate writes such a file"};
  };
  if (!json->is_object()) return wrong("", "an object", json_excerpt(*json));
  const auto architecture = json->find("architecture");
  if (architecture == json->end() || *architecture != config.architecture) {
    return wrong("architecture", quote(config.architecture),
                 architecture == json->end() ? "nothing" : json_excerpt(*architecture));
  }
  std::vector<TensorScales> out(static_cast<std::size_t>(config.layers));
  if (auto ok = read_part(*json, path, "key", &TensorScales::key, out); !ok) return ok.error();
  if (!config.is_mla()) {
    if (auto ok = read_part(*json, path, "value", &TensorScales::value, out); !ok) {
      return ok.error();
    }
  } else if (json->contains("value")) {
    return wrong("value", "nothing: a latent is key and value at once",
                 json_excerpt((*json)["value"]));
  }
  return out;
}

Result<void> check_takes_scales(const ModelPlan& plan) {
  if (has_tensor_scales(plan)) return {};
  const Plan& first = plan.groups.front().plan;
  return Error{ErrorCode::invalid_argument, "--kv-scales", "a cache that has one scale a layer",
               std::string(first.main().layout.name()),
               is_gqa(first.main().layout.kind()) ? "--kv-layout gqa_fp8" : "--kv-layout mla_fp8"};
}

std::string kv_scales_range(const ModelConfig& config, std::span<const TensorScales> scales) {
  std::string out = "keys " + range(scales, &TensorScales::key);
  if (!config.is_mla()) out += ", values " + range(scales, &TensorScales::value);
  return out;
}

}  // namespace lathe
