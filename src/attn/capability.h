// Capability: what a kernel declares that it can do, with its bounds. The planner knows nothing
// else about a kernel, so registries take the numbers from the kernel's own constants where they
// can.
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

/// What a kernel reads, and in which arithmetic.
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

/// The unit of the indices in a kernel's index lists.
#define LATHE_KEY_UNITS(X) X(slot) X(ragged_row)
LATHE_ENUM(KeyUnit, LATHE_KEY_UNITS)

/// The values that a kernel accepts for a parameter: a list, or the multiples of a number in a
/// range.
struct Accepts {
  std::int64_t min = 1;
  std::int64_t max = INT32_MAX;
  std::int64_t multiple = 1;
  std::vector<std::int64_t> only;  // if not empty: exactly these; min, max, multiple are not used

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

/// Shared memory that a kernel's schedule uses in one block: fixed + per_row * rows bytes.
struct SharedBound {
  std::int64_t fixed = 0;
  std::int64_t per_row = 0;  // 0: independent of the rows

  /// Most rows that fit; 0 = no bound.
  std::int64_t max_rows(const Machine& machine) const {
    return per_row == 0 ? 0 : (machine.block_shared_bytes - fixed) / per_row;
  }
};

/// How a GPU kernel splits the keys of a work tile (a request, or a row with an index list) under
/// --batch-invariant, where the bits must not depend on the rest of the batch.
struct FixedCuts {
  std::int64_t keys = 0;    // keys of a piece, about; 0: the kernel has no fixed cuts
  std::int64_t pieces = 1;  // most pieces of a work tile
  // Most rows of a request that is split; each KV head then has an M block. 0: no bound, and all
  // heads share M blocks.
  std::int64_t rows = 0;
  std::int64_t block_rows = 1;  // most M rows (rows x heads) of an M block
  std::int64_t blocks = 1;      // most M blocks of a work tile that is split; larger ones are not
};

struct Capability {
  std::string name;  // unique in a registry: "ref.sparse_latent.inplace"
  KernelKind kind = KernelKind::inplace;
  EnumSet<Device> devices;
  EnumSet<ProblemKind> problems;
  EnumSet<Phase> phases;

  EnumSet<LayoutKind> layouts;  // read in place
  bool compact_rows = false;    // also reads compact rows, which an adapter can make
  LayoutKind compact_layout = LayoutKind::mla_bf16;  // the layout of a compact row
  bool homogeneous_only = false;
  EnumSet<ScalePolicy> scale_policies = EnumSet<ScalePolicy>::all();  // read without loss
  Arithmetic arithmetic =
      Arithmetic::bf16;  // for bf16 operands; kind native over fp8 or fp4 bytes is fp8

  Accepts heads = Accepts::range(1, 128);
  Accepts page_sizes;
  Accepts top_k;
  Accepts nope = Accepts::any();                // latent problems
  Accepts rope = Accepts::range(0, INT32_MAX);  // latent problems; 0: no rotary part
  Accepts qk_nope_head = Accepts::any();        // expanding kernels
  Accepts v_head = Accepts::any();              // expanding kernels
  Accepts head_dim = Accepts::any();            // grouped_query: width of keys
  Accepts value_head_dim = Accepts::any();      // grouped_query: width of values
  bool equal_head_dims = false;                 // grouped_query: both widths must be the same
  bool window = true;
  bool whole_page_chunks = false;  // grouped_query: chunks of tokens must be whole pages
  bool sink = true;
  bool two_sources =
      true;  // reads two pools at once; false: two sources must come as one compact buffer

  SharedBound schedule;               // bounds the rows of a call
  bool context_within_top_k = false;  // sparse problems: only if context <= top-k
  std::int32_t table_tokens = 1;      // page tables are padded to a multiple of this many tokens
  bool split_kv = false;              // may split keys between workers, and keeps partial results
  // Most bytes of partial results, if the kernel limits its splits to fit; 0: it has
  // (requests + processors) x heads x (v_dim + 1) floats.
  std::int64_t split_bytes = 0;
  FixedCuts fixed_cuts;
  // Expanding kernels on a CPU: rows for which each worker keeps f32 queries and accumulators at a
  // time; 0: none. The rest of a worker's memory (a tile of keys, and q and accumulators of a few
  // rows) is about 1 MiB and is not budgeted.
  std::int64_t worker_rows = 0;
  // Expanding kernels on a GPU: most bytes of latents and expanded keys and values at a time
  // (expansion.h); 0: none.
  std::int64_t expanded_bytes = 0;
  // With backend `auto`: used only for requests with at least this many rows in the step, from
  // where it is faster than other kernels.
  std::int64_t least_rows = 0;
  bool batch_invariant = true;   // can split by a request's own keys alone
  bool shared_prefixes = false;  // reads keys of AttendArgs::prefixes once
  bool graph_safe = true;        // can be captured in a CUDA graph and replayed with new contents

  // Type of q, unless q must have the cache's format (q_dtype()). Kernels that compute in f32 ask
  // for f32, which costs nothing there and keeps q's precision.
  DType wide_q = DType::bf16;

  /// Measured fractions of the machine's peaks, and the cost of a launch. They rank candidates.
  double flops_share = 0.6;
  double bytes_share = 0.8;
  double launch_seconds = 5e-6;

  /// Declares a kernel of kind gather, which reads compact rows of layout `rows` that an adapter
  /// makes. A bf16 latent pool already is such rows and needs no adapter. Grouped-query pages need
  /// it, because their keys and values are in separate planes. So do two sources, because they must
  /// become one buffer.
  void set_gather(LayoutKind rows) {
    layouts = rows == LayoutKind::mla_bf16 ? EnumSet<LayoutKind>{rows} : EnumSet<LayoutKind>{};
    compact_rows = true;
    compact_layout = rows;
    two_sources = false;
  }

  /// Type of q that the kernel reads. Kind native needs q in the cache's format.
  DType q_dtype(const CacheLayout& layout) const {
    if (kind != KernelKind::native || layout.value_dtype() == DType::bf16) return wide_q;
    return DType::e4m3;
  }
  Arithmetic arithmetic_on(const CacheLayout& layout) const {
    if (arithmetic == Arithmetic::f64 || q_dtype(layout) != DType::e4m3) return arithmetic;
    return Arithmetic::fp8;
  }
};

/// A kernel: its capability and its functions. A kernel without functions can be planned for but
/// not run.
struct Kernel {
  Capability capability;
  AttendFn attend = nullptr;
  PrepareFn prepare = nullptr;  // null: every call computes its own schedule
};

/// A conversion that runs before a kernel that cannot read the stored layout.
struct Adapter {
  std::string name;
  EnumSet<LayoutKind> from;
  LayoutKind to = LayoutKind::mla_bf16;
  bool to_compact_rows = true;  // false: makes pages of `to`
  EnumSet<Phase> phases = EnumSet<Phase>::all();
  EnumSet<ProblemKind> problems = EnumSet<ProblemKind>::all();
  bool whole_pool = false;  // converts every page of the pool at each call, not only the batch's
                            // rows
  bool exact = true;        // loses no precision
};

}  // namespace lathe
