// Capabilities of kernels for tests: the attention kernels and conversions of other serving systems
// for DeepSeek V3.2 on CUDA, with the limits that their own asserts state. They have no function to
// run.
#pragma once

#include "attn/machine.h"
#include "plan/registry.h"

namespace lathe::testing {

inline const Machine kH200 = describe_machine(Device::sm90);

inline Capability described(std::string name, KernelKind kind, EnumSet<Device> devices) {
  Capability c;
  c.name = std::move(name);
  c.kind = kind;
  c.devices = devices;
  c.problems = {ProblemKind::sparse_latent};
  c.phases = EnumSet<Phase>::all();
  return c;
}

inline Registry upstream_kernels() {
  Registry r;

  Capability sparse =
      described("flashmla_sparse", KernelKind::gather, {Device::sm90, Device::sm100});
  sparse.layouts = {LayoutKind::mla_bf16};
  sparse.compact_rows = true;
  sparse.heads = Accepts::list({64, 128});
  sparse.top_k = Accepts::multiple_of(128);
  r.add({sparse});

  Capability kv = described("flashmla_kv", KernelKind::inplace, {Device::sm90, Device::sm100});
  kv.layouts = {LayoutKind::mla_fp8_block};
  // The sm100 reader truncates scales to powers of two.
  kv.scale_policies = {ScalePolicy::pow2_ceil};
  kv.heads = Accepts::list({64, 128});
  kv.top_k = Accepts::multiple_of(64);
  kv.page_sizes = Accepts::list({64});
  // One block has the schedule of all rows: 4 * (5 * rows + 1) bytes.
  kv.schedule = {.fixed = 4, .per_row = 20};
  r.add({kv});

  Capability fa3 = described("fa3", KernelKind::inplace, {Device::sm90});
  fa3.layouts = {LayoutKind::mla_bf16};
  r.add({fa3});

  Capability tilelang = described("tilelang", KernelKind::inplace, {Device::sm90, Device::sm100});
  tilelang.layouts = {LayoutKind::mla_bf16};
  tilelang.top_k = Accepts::list({2048});
  r.add({tilelang});

  Capability trtllm = described("trtllm", KernelKind::native, {Device::sm100});
  trtllm.layouts = {LayoutKind::mla_bf16, LayoutKind::mla_fp8};
  trtllm.homogeneous_only = true;
  trtllm.page_sizes = Accepts::list({32, 64});
  trtllm.table_tokens = 128;
  r.add({trtllm});

  Capability q8 = described("flashmla_sparse_q8", KernelKind::gather, {Device::sm90});
  q8.phases = {Phase::extend};
  q8.compact_rows = true;
  q8.compact_layout = LayoutKind::mla_fp8;
  r.add({q8});

  Adapter dequantise;
  dequantise.name = "dequantise-paged";
  dequantise.from = {LayoutKind::mla_fp8_block};
  dequantise.phases = {Phase::extend};
  r.add(dequantise);

  Adapter to_fp8_rows;
  to_fp8_rows.name = "gather-requantise";
  to_fp8_rows.from = {LayoutKind::mla_fp8_block};
  to_fp8_rows.to = LayoutKind::mla_fp8;
  to_fp8_rows.phases = {Phase::extend};
  to_fp8_rows.exact = false;
  r.add(to_fp8_rows);

  Adapter quantise_pool;
  quantise_pool.name = "quantise-pool";
  quantise_pool.from = {LayoutKind::mla_bf16};
  quantise_pool.to = LayoutKind::mla_fp8_block;
  quantise_pool.to_compact_rows = false;
  quantise_pool.whole_pool = true;
  quantise_pool.exact = false;
  r.add(quantise_pool);
  return r;
}

/// A kernel for sm90 that accepts everything. Tests restrict it.
inline Capability able(std::string name, KernelKind kind = KernelKind::inplace) {
  Capability c;
  c.name = std::move(name);
  c.kind = kind;
  c.devices = {Device::sm90};
  c.problems = EnumSet<ProblemKind>::all();
  c.phases = EnumSet<Phase>::all();
  c.layouts = EnumSet<LayoutKind>::all();
  return c;
}

/// A registry with one kernel.
inline Registry with(Capability c) {
  Registry r;
  r.add({std::move(c)});
  return r;
}

}  // namespace lathe::testing
