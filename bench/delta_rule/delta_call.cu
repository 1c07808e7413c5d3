// A C function around the launches of delta-rule layers, for delta_rule.py.
#include "kernels/cuda/sm90/delta/delta.cu"

namespace {

/// Hands out the addresses of a list in turn.
struct Addresses {
  void* const* at;

  template <class T>
  void next(T*& to) {
    to = static_cast<T*>(*at++);
  }
};

}  // namespace

/// `kernel` is an index of kKernels. counts: heads, key_heads, per_channel, bounded, sigmoid_out,
/// rows, requests, state_width, state_tokens, banks, last_states; heads of 128. numbers: the gate's
/// bound, the norm's epsilon. Arrays are dense, in the order below. Returns a CUDA status.
extern "C" int delta_call(int kernel, const long long* counts, const float* numbers,
                          void* const* arrays, void* stream) {
  using namespace lathe::cuda;
  constexpr cudaError_t (*kKernels[])(const DeltaParams&, cudaStream_t) = {
      launch_delta_rows, launch_delta_mix,    launch_delta_chunks,
      launch_delta_scan, launch_delta_finish, launch_delta_decode};
  DeltaParams p;
  p.dk = p.dv = kDeltaWidth;
  p.heads = static_cast<int>(*counts++);
  p.key_heads = static_cast<int>(*counts++);
  p.per_channel = *counts++ != 0;
  p.bounded = *counts++ != 0;
  p.sigmoid_out = *counts++ != 0;
  p.rows = *counts++;
  p.requests = *counts++;
  p.state_width = *counts++;
  p.state_tokens = *counts++;
  p.state_banks = *counts++;
  p.last_states = *counts++;
  p.gate_bound = numbers[0];
  p.norm_eps = numbers[1];
  const long long values = static_cast<long long>(p.heads) * p.dv;
  p.channels = 2ll * p.key_heads * p.dk + values;
  p.gate_cols = p.per_channel ? static_cast<long long>(p.heads) * p.dk : p.heads;
  p.x_stride = p.channels;
  p.decay_stride = p.gate_cols;
  p.beta_stride = p.heads;
  p.gate_stride = p.out_stride = values;
  p.state_stride = values * p.dk + (kDeltaTaps - 1) * p.channels;
  p.chunks = p.rows / kDeltaChunkRows + 2 * p.requests;
  p.single = p.rows == p.requests;
  Addresses next{arrays};
  next.next(p.x), next.next(p.decay), next.next(p.beta), next.next(p.gate);
  next.next(p.conv), next.next(p.a_log), next.next(p.dt_bias), next.next(p.norm);
  next.next(p.out), next.next(p.positions), next.next(p.row_request), next.next(p.q_indptr);
  next.next(p.kv_lens), next.next(p.state_before), next.next(p.state_table), next.next(p.state);
  next.next(p.mixed), next.next(p.w), next.next(p.u), next.next(p.scores);
  next.next(p.q), next.next(p.k), next.next(p.row_fades), next.next(p.last_fades);
  return kKernels[kernel](p, static_cast<cudaStream_t>(stream));
}
