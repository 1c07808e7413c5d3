// Calls of the indexer as indexer_gpu_bench gives them to a peer (bench_peer.h).
#pragma once

#include <cstdint>

extern "C" {

/// out[t, j] = sum over heads h of weights[t, h] * (scale of q[t, h]) * relu(q[t, h] . key j) *
/// (scale of key j), for keys j < lengths[t] of the row's request. finish() leaves others alone.
struct LatheIndexLogitsPeerCall {
  const char* kind;  // "index_logits"
  std::int32_t rows, requests, heads, dim;
  const void* q;         // [rows]: e4m3 [heads, dim], then f32 scales [heads]
  const float* weights;  // [rows, heads]
  const void* pages;     // [pages]: e4m3 [page_size, dim], then f32 scales [page_size]
  std::int32_t page_count, page_size, table_width;
  const std::int32_t* page_table;  // [requests, table_width]
  const std::int32_t* request;     // [rows] row i has request i * requests / rows
  const std::int32_t* lengths;     // [rows]
  std::int32_t most_length;
  float* out;  // [rows, cols]
  std::int64_t cols;
};

/// out[t]: slots (page * page_size + place in the page) of the k keys of row t with the highest
/// logits, in any order; -1 where the row has fewer.
struct LatheTopKPeerCall {
  const char* kind;  // "top_k"
  std::int32_t rows, requests, k;
  const float* logits;  // [rows, cols]
  std::int64_t cols;
  const std::int32_t* lengths;  // [rows]
  std::int32_t pages, page_size, table_width;
  const std::int32_t* page_table;  // [requests, table_width]
  const std::int32_t* request;     // [rows]
  std::int32_t* out;               // [rows, k]
};

}  // extern "C"
