// Registry: the kernels and adapters that a plan may choose from. It is a value that is filled once
// and then only read.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "attn/capability.h"

namespace lathe {

class Registry {
 public:
  /// A second kernel or adapter of the same name is a bug in the program.
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

/// The conversions that the codecs offer (layout/codec/codec.h): gather-decode from any latent or
/// grouped-query layout into compact bf16 rows.
void add_adapters(Registry& registry);
/// Those of models on a GPU: the keys that indexers select.
void add_gpu_model_adapters(Registry& registry);

}  // namespace lathe
