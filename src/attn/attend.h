// The arguments of an attention kernel, the same for every device and kind.
//
// Every row of q belongs to a request. Row j of a request that brings n rows and has L keys in the
// cache (its own rows' keys included) stands at position L - n + j and sees keys 0 .. L - n + j
// (with a window w: the last w of them), or, where the source has an index list, exactly the keys
// of its index row. With L = 0 the rows are padding: no page table lists a key for them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "attn/lse_convention.h"
#include "attn/problem.h"
#include "base/execution.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/pages/index_units.h"
#include "layout/pages/pool_view.h"

namespace lathe {

class Schedule;

/// One set of keys. The bytes are a pool or a compact buffer; the keys are given by a page table
/// (all keys of the request, a pool only) or by an index list (Slot values into a pool, RaggedRow
/// values into a compact buffer).
struct KeySource {
  std::optional<ConstPoolView> pool;
  RowsView compact;     // [n, row_elems of the layout] bf16 or f32; used where pool is empty
  float key_scale = 1;  // per-tensor scales of the pool (ScalePolicy::per_tensor)
  float value_scale = 1;
  // On a GPU, with an e4m3 q: [1], read when the kernel runs, one more factor of key_scale; or
  // null.
  const float* device_key_scale = nullptr;

  std::span<const PageId> page_table;  // [requests, table_width]; -1 past a request's pages
  std::int64_t table_width = 0;        // 0 where index lists are used

  std::span<const std::int32_t> indices;  // [rows, index_width]; -1 or out of range is no key
  std::int64_t index_width = 0;
  std::span<const std::int32_t>
      index_lengths;  // [rows] entries of the index row that count; empty = all of them
};

/// Weights that expand a latent to per-head keys and values (kind `ragged`).
struct Expansion {
  std::span<const float> w_uk;  // [heads, qk_nope_head, nope]
  std::span<const float> w_uv;  // [heads, v_head, nope]
  // A GPU's kernels read both as checkpoints store them: [heads * (qk_nope_head + v_head), nope],
  // of each head the rows of its keys and then those of its values.
  const std::byte* kv_b = nullptr;
  DType kv_b_dtype = DType::bf16;
  const float* kv_b_scales = nullptr;  // of e4m3: of blocks of 128 x 128; null: all 1
};

struct AttendArgs {
  AttentionProblem problem;
  RowsView q;         // [rows, heads * qk_dim] f32, bf16 or e4m3; kind `ragged`: [rows, heads *
                      // (qk_nope_head + rope)]
  float q_scale = 1;  // of an e4m3 q
  const float* device_q_scale = nullptr;   // as KeySource::device_key_scale
  std::span<const std::int32_t> q_indptr;  // [requests + 1] first row of each request
  std::span<const std::int32_t> kv_lens;   // [requests] keys of each request
  KeySource main;
  KeySource extra;  // window_compressed's entries; by page table: 0 .. (position + 1) / ratio - 1
  std::span<const float> sink;  // [heads] raw logits, or empty
  Expansion expansion;

  MutableRowsView
      out;  // [rows, heads * v_dim] f64, f32 or bf16; kind `ragged`: [rows, heads * v_head]
  MutableRowsView lse;  // [rows, heads] f64 or f32, sink not included; may be null
  LseConvention lse_convention;

  // What the host knows about lengths that lie on a GPU; the CPU's kernels read the lengths
  // themselves.
  std::int64_t max_request_rows = 1;  // most rows of a request
  std::int64_t max_kv_len = 0;        // most keys of a request; 0: what the page table holds
  std::int64_t total_keys = 0;        // of all requests together; 0: max_kv_len of each

  // Made by the kernel's prepare() for the step; null: the call makes its own.
  const Schedule* schedule = nullptr;

  Execution execution;  // threads or stream, and scratch
};

/// Errors name the argument; on an error nothing was written.
using AttendFn = Result<void> (*)(const AttendArgs&);

/// Makes of a step's lengths what the calls of its layers share: they have the same problem,
/// lengths, shapes and execution, and give the same bits as without a schedule. Lengths and page
/// tables of `args` are those of the calls; q, out, index lists and pools have their shapes, and no
/// bytes that may be read. Errors: no memory.
using PrepareFn = Result<void> (*)(const AttendArgs& args, Schedule& schedule);

}  // namespace lathe
