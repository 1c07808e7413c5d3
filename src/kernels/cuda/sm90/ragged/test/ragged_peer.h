// A call of attention over expanded keys as ragged_gpu_bench gives it to a peer (bench_peer.h).
#pragma once

#include <cstdint>

extern "C" {

/// out = softmax(scale q k^T) v for each head. A request's rows of q are its last ones: of n rows,
/// row i sees keys 0 .. length - n + i. A key is its head's expanded part and then the RoPE part
/// that all heads share.
struct LatheRaggedPeerCall {
  const char* kind;  // "ragged"
  std::int32_t requests, heads, nope, rope, value_dim;
  float scale;
  const void* q;                 // bf16 [rows, heads, nope + rope]
  const std::int32_t* q_begins;  // [requests + 1] rows before a request's
  const std::int32_t* k_begins;  // [requests + 1] keys before a request's
  std::int32_t rows, keys;       // of all requests
  std::int32_t least_rows, most_rows, least_keys, most_keys;  // of a request
  const void* expanded;  // bf16 [keys, heads, nope of the key | value_dim of the value]
  const void* key_rope;  // bf16 [keys, rope], keys key_rope_stride elements apart
  std::int64_t key_rope_stride;
  void* out;  // bf16 [rows, heads, value_dim]
};

}  // extern "C"
