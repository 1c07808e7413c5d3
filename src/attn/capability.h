// Capability: what a kernel declares it can do, bounds included. The planner relies on nothing
// else, so a kernel's entry is derived from the kernel's own type wherever it has one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/attend.h"
#include "attn/machine.h"
#include "attn/phase.h"
#include "attn/problem.h"
#include "base/dtype.h"
#include "layout/layout.h"

namespace lathe {

/// Where a kernel reads and in what arithmetic.
// clang-format off
#define LATHE_KERNEL_KIND_LIST(X)                                                                     \
  X(gather, "compact bf16 rows that an adapter copies from any layout; a bf16 pool is such rows")     \
  X(inplace, "the pages of any layout, decoding inside the kernel, bf16 arithmetic")                  \
  X(native, "the pages, in the cache's own number format; homogeneous layouts only")                  \
  X(ragged, "latents expanded to per-head keys and values; extend only, sparse while context <= top-k")
// clang-format on
LATHE_ENUM_WITH_TEXT(KernelKind, LATHE_KERNEL_KIND_LIST)

#define LATHE_ARITHMETICS(X) X(f64) X(bf16) X(fp8)
LATHE_ENUM(Arithmetic, LATHE_ARITHMETICS)

/// How a kernel is told which keys to read.
#define LATHE_KEY_UNITS(X) X(slot) X(ragged_row)
LATHE_ENUM(KeyUnit, LATHE_KEY_UNITS)

/// The integers that a kernel accepts for a parameter: a listed few, or a range with a common
/// divisor.
struct Accepts {
  std::int64_t min = 1;
  std::int64_t max = INT32_MAX;
  std::int64_t multiple = 1;
  std::vector<std::int64_t> only;  // where not empty, nothing else counts

  static Accepts any() { return {}; }
  static Accepts list(std::vector<std::int64_t> values) {
    return {1, INT32_MAX, 1, std::move(values)};
  }
  static Accepts multiple_of(std::int64_t m) { return {m, INT32_MAX, m, {}}; }
  static Accepts range(std::int64_t lo, std::int64_t hi) { return {lo, hi, 1, {}}; }

  bool contains(std::int64_t v) const;
  /// "64 or 128", "a multiple of 128", "1 to 128", "any"
  std::string text() const;
};

/// Shared memory that a kernel's schedule takes for a number of rows, in one block: fixed + per_row
/// * rows bytes.
struct SharedBound {
  std::int64_t fixed = 0;
  std::int64_t per_row = 0;  // 0: the schedule does not grow with the rows

  /// Rows that fit the machine; 0 = no bound.
  std::int64_t max_rows(const Machine& machine) const {
    return per_row == 0 ? 0 : (machine.block_shared_bytes - fixed) / per_row;
  }
};

/// How a GPU's kernel cuts the keys of a work tile, a request or a row with a list of its own,
/// where its bits must not depend on what is beside it.
struct FixedCuts {
  std::int64_t keys = 0;        // of a piece, about; 0: it cuts otherwise
  std::int64_t pieces = 1;      // of a work tile, at most
  std::int64_t block_rows = 1;  // M rows (rows x heads) of a block
  std::int64_t blocks = 1;      // of a work tile, at most: larger ones are not cut
};

struct Capability {
  std::string name;  // unique in a registry: "ref.sparse_latent.inplace"
  KernelKind kind = KernelKind::inplace;
  EnumSet<Device> devices;
  EnumSet<ProblemKind> problems;
  EnumSet<Phase> phases;

  EnumSet<LayoutKind> layouts;  // read where they lie
  bool compact_rows = false;    // reads compact rows too, so an adapter may stand before it
  LayoutKind compact_layout = LayoutKind::mla_bf16;  // what a compact row holds
  bool homogeneous_only = false;
  EnumSet<ScalePolicy> scale_policies = EnumSet<ScalePolicy>::all();  // read without loss
  Arithmetic arithmetic =
      Arithmetic::bf16;  // over bf16 operands; native over fp8 or fp4 bytes is fp8

  Accepts heads = Accepts::range(1, 128);
  Accepts page_sizes;
  Accepts top_k;
  Accepts nope = Accepts::any();          // latent problems
  Accepts rope = Accepts::any();          // latent problems
  Accepts qk_nope_head = Accepts::any();  // expanding kernels
  Accepts v_head = Accepts::any();        // expanding kernels
  Accepts head_dim = Accepts::any();      // grouped_query: of keys and of values
  bool window = true;
  bool sink = true;
  bool two_sources =
      true;  // reads two pools at once; else two sources reach it only as one compact buffer

  SharedBound schedule;               // bound on rows
  bool context_within_top_k = false;  // sparse problems: only while every key would be selected
  std::int32_t table_tokens = 1;      // page tables are padded to a multiple of this many tokens
  bool split_kv = false;              // keeps partial states of keys that are cut between workers
  // Most bytes of partial states, where the kernel limits its splits to fit them; 0: they are
  // (requests + processors) x heads x (v_dim + 1).
  std::int64_t split_bytes = 0;
  FixedCuts fixed_cuts;
  // Expanding kernels: rows whose f32 queries and accumulators each worker keeps at a time; 0:
  // none. What else a worker keeps, a tile of keys with the q and accumulators of a few rows, is
  // about 1 MiB and has no budget.
  std::int64_t worker_rows = 0;
  // Expanding kernels of a GPU: most bytes of latents, keys and values of the heads and requests
  // that are expanded at a time (expansion.h); 0: none.
  std::int64_t expanded_bytes = 0;
  // Rows of a request from which on it is faster than others where it is not asked for by name.
  std::int64_t least_rows = 0;
  bool batch_invariant = true;  // can cut by a request's own keys alone
  bool graph_safe = true;       // can be captured in a CUDA graph and replayed with other contents

  // How q is handed over where it is not in the cache's own format. f32 where the arithmetic is
  // f32 anyway: it costs nothing there and keeps q's digits.
  DType wide_q = DType::bf16;

  /// Measured shares of the machine's peaks; they rank candidates.
  double flops_share = 0.6;
  double bytes_share = 0.8;
  double launch_seconds = 5e-6;

  /// Declares a kernel of kind gather, over compact rows of layout `rows` that an adapter makes.
  /// A bf16 latent pool is a buffer of such rows already. Two sources always come through the
  /// adapter, because they have to become one buffer, and so do grouped-query pages, whose keys and
  /// values lie apart.
  void set_gather(LayoutKind rows) {
    layouts = rows == LayoutKind::mla_bf16 ? EnumSet<LayoutKind>{rows} : EnumSet<LayoutKind>{};
    compact_rows = true;
    compact_layout = rows;
    two_sources = false;
  }

  /// What q must be when it reaches the kernel: native arithmetic takes q in the cache's format.
  DType q_dtype(const CacheLayout& layout) const {
    if (kind != KernelKind::native || layout.value_dtype() == DType::bf16) return wide_q;
    return DType::e4m3;
  }
  Arithmetic arithmetic_on(const CacheLayout& layout) const {
    if (arithmetic == Arithmetic::f64 || q_dtype(layout) != DType::e4m3) return arithmetic;
    return Arithmetic::fp8;
  }
};

/// A kernel: its declaration and its entries. A described kernel has none and can be planned for,
/// not run.
struct Kernel {
  Capability capability;
  AttendFn attend = nullptr;
  PrepareFn prepare = nullptr;  // null: every call computes what it needs
};

/// A conversion that can stand before a kernel which cannot read the stored layout.
struct Adapter {
  std::string name;
  EnumSet<LayoutKind> from;
  LayoutKind to = LayoutKind::mla_bf16;
  bool to_compact_rows = true;  // else pages of `to`
  EnumSet<Phase> phases = EnumSet<Phase>::all();
  EnumSet<ProblemKind> problems = EnumSet<ProblemKind>::all();
  bool whole_pool = false;  // converts every page of the pool at each call, not just the rows that
                            // the batch needs
  bool exact = true;        // loses nothing
};

}  // namespace lathe
