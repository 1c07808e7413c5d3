#include "tools/stored_values.h"

#include <fmt/format.h>

#include <vector>

#include "attn/model_plan.h"

namespace lathe {
namespace {

// Latents of a common scale flush less than one value in a thousand.
constexpr double kManyFlushed = 0.01;

double share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string describe_stored_values(Runtime& runtime) {
  ValueCounts all;
  std::vector<std::int32_t> bad;
  for (std::int32_t l = 0; l < runtime.config().layers; ++l) {
    const ValueTally* tally = runtime.cache().tally(l);
    if (tally == nullptr) return "";
    const ValueCounts counts = tally->counts();
    all.add(counts);
    if (counts.saturated > 0 || share(counts.flushed, counts.stored) > kManyFlushed) {
      bad.push_back(l);
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
