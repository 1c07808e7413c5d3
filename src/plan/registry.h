// Registry: the kernels and adapters that a plan may use. It is filled once and then only read.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "attn/capability.h"

namespace lathe {

class Registry {
 public:
  /// Precondition: no kernel or adapter has this name yet.
  void add(Kernel kernel);
  void add(Adapter adapter);

  std::span<const Kernel> kernels() const { return kernels_; }
  std::span<const Adapter> adapters() const { return adapters_; }
  const Kernel* find(std::string_view name) const;
  EnumSet<Device> devices() const;

 private:
  std::vector<Kernel> kernels_;
  std::vector<Adapter> adapters_;
};

/// Adds the conversions of the codecs (layout/codec/codec.h): gather-decode from any latent or
/// grouped-query layout to compact bf16 rows.
void add_adapters(Registry& registry);
/// Adds the conversion that a GPU has in models: gather-decode of the keys that an indexer
/// selected.
void add_gpu_model_adapters(Registry& registry);

}  // namespace lathe
