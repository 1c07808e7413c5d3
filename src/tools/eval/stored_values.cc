#include "tools/eval/stored_values.h"

#include <fmt/format.h>

#include <vector>

#include "plan/model_plan.h"

namespace lathe {
namespace {

// With a suitable scale, latents flush less than one value in a thousand to zero.
constexpr double kManyFlushed = 0.01;

double share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string describe_stored_values(Runtime& runtime) {
  const auto layers = runtime.stored_values();
  if (!layers) return layers.error().message() + "\n";
  ValueCounts all;
  std::vector<std::int32_t> bad;
  for (std::size_t l = 0; l < layers->size(); ++l) {
    const ValueCounts& counts = (*layers)[l];
    all.add(counts);
    if (counts.saturated > 0 || share(counts.flushed, counts.stored) > kManyFlushed) {
      bad.push_back(static_cast<std::int32_t>(l));
    }
  }
  if (all.stored == 0) return "";
  return fmt::format(
      "kv values {} stored, {} saturated ({:.2g} %), {} flushed to zero ({:.2g} %){}\n", all.stored,
      all.saturated, 100 * share(all.saturated, all.stored), all.flushed,
      100 * share(all.flushed, all.stored),
      bad.empty()
          ? ""
          : fmt::format(" in {}: lathe calibrate finds scales for --kv-scales", layers_text(bad)));
}

}  // namespace lathe
