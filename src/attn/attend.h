// The arguments of an attention kernel, for all devices and kinds of kernel.
//
// Every row of q belongs to a request. Let a request have n rows in this call and L keys in the
// cache, its own n rows included. Its row j is at position L - n + j and attends to keys
// 0 .. L - n + j (with a window w: to the last w of them). If the source has index lists, the row
// attends instead to exactly the keys that its list names. L = 0 marks padding rows: they have no
// keys.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "attn/lse_convention.h"
#include "attn/problem.h"
#include "attn/shared_prefixes.h"
#include "base/execution.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_view.h"

namespace lathe {

class Schedule;

/// One set of keys. The bytes are in a pool or in a compact buffer. Which of them are keys is given
/// by a page table (all keys of the request; pools only) or by index lists (Slot values for a pool,
/// RaggedRow values for a compact buffer).
struct KeySource {
  std::optional<ConstPoolView> pool;
  RowsView compact;     // [n, row_elems of the layout] bf16 or f32; used if pool is empty
  float key_scale = 1;  // per-tensor scales of the pool (ScalePolicy::per_tensor)
  float value_scale = 1;
  // GPU, e4m3 q: [1] in device memory, read when the kernel runs and multiplied with key_scale; or
  // null.
  const float* device_key_scale = nullptr;

  std::span<const PageId> page_table;  // [requests, table_width]; -1 past a request's pages
  std::int64_t table_width = 0;        // 0: index lists

  std::span<const std::int32_t> indices;  // [rows, index_width]; -1 or out of range: no key
  std::int64_t index_width = 0;
  std::span<const std::int32_t>
      index_lengths;  // [rows] entries used of the row's list; empty = all
};

/// Weights that expand a latent to per-head keys and values (kind `ragged`).
struct Expansion {
  std::span<const float> w_uk;  // [heads, qk_nope_head, nope]
  std::span<const float> w_uv;  // [heads, v_head, nope]
  // GPU kernels read both as the checkpoint stores them: [heads * (qk_nope_head + v_head), nope],
  // for each head first the rows for keys, then the rows for values.
  const std::byte* kv_b = nullptr;
  DType kv_b_dtype = DType::bf16;
  const float* kv_b_scales = nullptr;  // e4m3: one for each block of 128 x 128; null: all 1
};

struct AttendArgs {
  AttentionProblem problem;
  RowsView q;         // [rows, heads * qk_dim] f32, bf16 or e4m3; kind `ragged`: [rows, heads *
                      // (qk_nope_head + rope)]
  float q_scale = 1;  // scale of an e4m3 q
  const float* device_q_scale = nullptr;   // as KeySource::device_key_scale
  std::span<const std::int32_t> q_indptr;  // [requests + 1] first row of each request
  std::span<const std::int32_t> kv_lens;   // [requests] keys of each request
  KeySource main;
  // Compressed entries of window_compressed. With a page table, a row attends to entries
  // 0 .. (position + 1) / ratio - 1.
  KeySource extra;
  std::span<const float> sink;  // [heads] raw logits, or empty
  Expansion expansion;

  MutableRowsView
      out;  // [rows, heads * v_dim] f64, f32 or bf16; kind `ragged`: [rows, heads * v_head]
  MutableRowsView lse;  // [rows, heads] f64 or f32, sink not included; may be null
  LseConvention lse_convention;

  // What the host knows of lengths in GPU memory. CPU kernels read the lengths themselves.
  std::int64_t max_request_rows = 1;  // most rows of a request
  std::int64_t max_kv_len = 0;        // most keys of a request; 0: as many as fit its page table
  std::int64_t total_keys = 0;        // sum over requests; 0: requests x max_kv_len

  // Kernels with Capability::shared_prefixes, with a page table and without index lists: keys to
  // read once for several requests, in the memory of the other lists.
  SharedPrefixes prefixes;

  // Made by the kernel's prepare() for the step; null: the call computes its own.
  const Schedule* schedule = nullptr;

  Execution execution;  // threads or stream, and scratch
};

/// Errors name the argument; on an error nothing was written.
using AttendFn = Result<void> (*)(const AttendArgs&);

/// Computes a schedule from a step's lengths, which the calls of all its layers then share. They
/// must have the problem, lengths, shapes and execution of `args`; results have the same bits as
/// without a schedule. Lengths and page tables of `args` must be filled in. q, out, index lists and
/// pools need only shapes; their bytes are not read. Errors: no memory.
using PrepareFn = Result<void> (*)(const AttendArgs& args, Schedule& schedule);

}  // namespace lathe
