#include "plan/registry.h"

#include <algorithm>

#include "base/check.h"

namespace lathe {

void Registry::add(Kernel kernel) {
  LATHE_CHECK(find(kernel.capability.name) == nullptr, kernel.capability.name);
  kernels_.push_back(std::move(kernel));
}

void Registry::add(Adapter adapter) {
  LATHE_CHECK(std::none_of(adapters_.begin(), adapters_.end(),
                           [&](const Adapter& a) { return a.name == adapter.name; }),
              adapter.name);
  adapters_.push_back(std::move(adapter));
}

const Kernel* Registry::find(std::string_view name) const {
  const auto it = std::find_if(kernels_.begin(), kernels_.end(),
                               [&](const Kernel& k) { return k.capability.name == name; });
  return it == kernels_.end() ? nullptr : &*it;
}

EnumSet<Device> Registry::devices() const {
  EnumSet<Device> all;
  for (const Kernel& k : kernels_) all = all | k.capability.devices;
  return all;
}

namespace {

Adapter gather_latent() {
  Adapter a;
  a.name = "gather-decode";
  a.from = layouts_holding(KeyForm::latent) | layouts_holding(KeyForm::latent_row);
  a.to = LayoutKind::mla_bf16;
  return a;
}

}  // namespace

void add_gpu_model_adapters(Registry& registry) {
  Adapter selected = gather_latent();
  selected.problems = {ProblemKind::sparse_latent};
  registry.add(selected);
}

void add_adapters(Registry& registry) {
  registry.add(gather_latent());

  Adapter gqa;
  gqa.name = "gather-decode-gqa";
  gqa.from = layouts_holding(KeyForm::per_head);
  gqa.to = LayoutKind::gqa_bf16;
  registry.add(gqa);
}

}  // namespace lathe
