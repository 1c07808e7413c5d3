// A call of latent attention as latent_gpu_bench gives it to a peer (bench_peer.h).
#pragma once

#include <cstdint>

extern "C" {

/// out = softmax(scale q k^T) v; v is the first d_v elements of k.
struct LathePeerCall {
  const char* kind;    // "dense_decode", "sparse_decode", "sparse_prefill"
  const char* layout;  // "mla_bf16", "mla_fp8", "mla_fp8_block", "v4_fp8"; "rows_bf16": bf16 rows
  std::int32_t requests, q_len, heads, d_qk, d_v;
  float scale, kv_scale, q_scale;
  const void* q;      // bf16 [requests * q_len, heads, d_qk]; e4m3 where layout is mla_fp8
  const void* cache;  // pages, or rows_bf16 [kv_rows, d_qk]
  std::int64_t page_stride_bytes;
  std::int32_t page_size, pages;
  const std::int32_t* page_table;  // [requests, table_width]; dense
  std::int32_t table_width;
  const std::int32_t* lengths;  // [requests]; dense
  std::int32_t max_length;
  const std::int32_t* indices;  // [requests * q_len, topk] slots, -1 none
  std::int32_t topk;
  const std::int32_t* topk_lengths;
  const void* extra_cache;
  std::int64_t extra_page_stride_bytes;
  std::int32_t extra_page_size, extra_pages;
  const std::int32_t* extra_indices;
  std::int32_t extra_topk;
  const float* sink;  // [heads]
  std::int64_t kv_rows;
  void* out;   // bf16 [requests * q_len, heads, d_v]
  float* lse;  // may be ignored
};

}  // extern "C"
