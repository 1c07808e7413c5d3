// config.json: any text is a configuration or an error; a configuration has problems that can be
// planned for, each layer in one group, and lists as long as its layers.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // The text serves as generation_config.json, too.
  const auto config = lathe::parse_model_config(text, text);
  if (!config) {
    LATHE_CHECK(!config.error().message().empty(), "an error without words");
    return 0;
  }
  LATHE_CHECK(config->layers > 0 && config->hidden > 0 && config->vocab > 0, "sizes");
  const auto layers = static_cast<std::size_t>(config->layers);
  std::size_t grouped = 0;
  bool sparse = false;
  for (const lathe::LayerGroupConfig& group : config->groups) {
    LATHE_CHECK(check_problem(group.problem).ok(), "a problem that is none");
    LATHE_CHECK(lathe::RopeTable::make(group.rope, 4).ok(), "RoPE without a table");
    grouped += group.layers.size();
    sparse = sparse || group.problem.kind == lathe::ProblemKind::sparse_latent;
  }
  LATHE_CHECK(grouped + config->delta.layers.size() == layers, "layers in groups");
  const auto& experts = config->moe.layer_has_experts;
  LATHE_CHECK(experts.empty() || experts.size() == layers, "experts of each layer");
  const auto& indexers = config->mla.own_indexer;
  LATHE_CHECK(indexers.empty() || indexers.size() == layers, "indexers of each layer");
  LATHE_CHECK(sparse == !indexers.empty(), "indexers of a sparse problem");
  return 0;
}
