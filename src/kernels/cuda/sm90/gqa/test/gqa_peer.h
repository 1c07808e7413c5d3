// A call of grouped-query attention as gqa_gpu_bench gives it to a peer (bench_peer.h).
#pragma once

#include <cstdint>

extern "C" {

/// out = softmax(scale q k^T) v. Each request has `rows` rows of q, its last ones: row i sees keys
/// 0 .. length - rows + i. Token t of page p has its keys at keys + p * page_stride + t *
/// key_stride, heads next to each other; values likewise.
struct LatheGqaPeerCall {
  const char* kind;    // "gqa"
  const char* format;  // of keys and values: "bf16"; "e4m3", as they are
  std::int32_t requests, rows, heads, kv_heads, key_dim, value_dim;
  std::int32_t window;  // keys that a row sees, its own included; 0: all; negative: chunks of them
  float scale;
  const void* q;                          // bf16 [requests * rows, heads, key_dim]
  const void* keys;                       // [pages, page_size tokens, kv_heads, key_dim]
  const void* values;                     // [pages, page_size tokens, kv_heads, value_dim]
  std::int64_t page_stride;               // bytes
  std::int64_t key_stride, value_stride;  // bytes from token to token
  std::int32_t pages, page_size, table_width;
  const std::int32_t* page_table;          // [requests, table_width]
  const std::int32_t* lengths;             // [requests] keys, those of q's rows included
  std::int32_t least_length, most_length;  // of all requests
  void* out;                               // bf16 [requests * rows, heads, value_dim]
};

}  // extern "C"
