// A consumer warpgroup: accumulates up to 64 weight rows x kTokens tokens.
//
// Weight rows are wgmma's M and tokens its N, for any number of tokens. So a token's bits depend
// neither on N nor on other tokens, only on the order of K; nor on which operand is on M, as
// matmul_many.cuh has them. Parts of K are summed separately and
// then added in order, by the blocks of a cluster (MatmulCluster::parts) or by one block.
#pragma once

#include "kernels/cuda/common/activated.cuh"
#include "kernels/cuda/common/cluster_store.cuh"
#include "kernels/cuda/common/out_boxes.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/matmul/matmul_kept.cuh"
#include "kernels/cuda/sm90/matmul/matmul_ring.cuh"
#include "kernels/cuda/sm90/matmul/matmul_scales.cuh"

namespace lathe::cuda {

/// v in bf16, times sigmoid(logit), as gate_rows_kernel computes it (sm90/rowwise/rowwise.cuh).
__device__ inline float times_sigmoid(float v, float logit) {
  constexpr float kLog2e = 1.44269504f;
  const float rounded = bits_to_float(pack_bf16(0, v) & 0xffff0000u);
  return divide_fast(rounded, 1 + exp2_fast(-kLog2e * logit));
}

template <class T>
struct MatmulConsumer {
  using Tile = T;
  using Format = typename T::Format;
  static constexpr int kValues = T::kTokens / 2;  // accumulators per thread

  const MatmulParams& p;
  const MatmulMaps& maps;
  const MatmulShared<T>& s;
  MatmulWorkList<T> list;
  int group, warp, lane;
  MatmulStage<T> stage;
  std::uint32_t round = 0;  // phase parity of the exchange of partials
  float acc[kValues];
  // Of formats that scale each chunk's sum, in tiles whose registers have room.
  static constexpr bool kWarpScales = Format::kTwoLevels && !T::kPair && T::kTokens <= 64;
  MatmulWarpScales scales;

  __device__ MatmulConsumer(const MatmulParams& params, const MatmulMaps& tensor_maps,
                            const MatmulShared<T>& shared, int thread)
      : p(params),
        maps(tensor_maps),
        s(shared),
        list(params, shared),
        group(of_warp(thread / 128)),
        warp(of_warp(thread % 128 / 32)),
        lane(thread % 32) {}

  /// In a uniform register, unless a block of four warpgroups has none to spare.
  __device__ static int of_warp(int v) { return T::kWide ? v : warp_value(v); }
  /// Weight rows per warpgroup.
  __device__ std::int32_t rows() const { return p.tile_rows / T::kWarpgroups; }
  __device__ std::uint32_t weights() const { return weights(stage.index); }
  __device__ std::uint32_t weights(int index) const {
    return s.weights(index) + static_cast<std::uint32_t>(group * rows() * Format::kWeightRowBytes);
  }

  __device__ MatmulRing<T> ring() const { return {s, weights(0), s.tokens(0), stage}; }
  __device__ std::uint32_t tokens() const { return s.tokens(stage.index); }
  /// Descriptor of the tokens for K step `k` (16 elements) of the stage.
  __device__ std::uint64_t token_step(int k) const {
    const auto box = static_cast<std::uint32_t>(k / 4 * T::kTokenBoxBytes);
    return tile_descriptor(tokens() + box + static_cast<std::uint32_t>(k % 4 * 32), 1024);
  }
  /// The same from the descriptor of step 0.
  __device__ static std::uint64_t token_step(std::uint64_t first, int k) {
    return descriptor_at(first, static_cast<std::uint32_t>(k / 4 * T::kTokenBoxBytes + k % 4 * 32));
  }
  __device__ void wait_full() const { barrier_wait(s.full(stage.index), stage.parity); }
  /// Scales of the thread's tokens 8 j, + 1 of the stage. A group may start at an odd token.
  __device__ float2 token_scales(const MatmulWork& w, std::uint32_t index, int j) const {
    const std::uint32_t at = s.scales(0) + index * T::kScaleBytes +
                             static_cast<std::uint32_t>(32 * j) +
                             static_cast<std::uint32_t>(8 * (lane & 3));
    if constexpr (!T::kGrouped) return load_float2(at);
    const std::uint32_t first = at + static_cast<std::uint32_t>(w.token % 4 * 4);
    return {load_float(first), load_float(first + 4)};
  }
  /// Index among the stage's packed scales of the thread's row (i = 0) or that row + 8 (i = 1).
  __device__ std::uint32_t packed_row(int i) const {
    const std::int32_t row = group * rows() + warp * 16 + lane / 4;
    if (p.gate_step == 0) return static_cast<std::uint32_t>(row + 8 * i);
    const std::int32_t of_both = row / 16 * 8 + row % 8;
    return static_cast<std::uint32_t>(p.gate_step == 1 ? i * (p.tile_rows / 2) + of_both
                                                       : 2 * of_both + i);
  }
  /// First weight row of the warpgroup.
  __device__ std::int32_t first_row(const MatmulWork& w) const { return w.row + group * rows(); }

  /// Lets the producer refill the stage with this barrier.
  __device__ void release(std::uint32_t empty) const {
    if (lane == 0) list.release(empty);
  }

  /// Adds this warpgroup's values over all parts of K, one per block of the cluster. Each block
  /// gets the totals of every split-th group of 8 tokens; its other values remain its own partial
  /// sums.
  __device__ void exchange_parts() {
    const auto me = static_cast<std::uint32_t>(threadIdx.x);
    const auto blocks = static_cast<std::uint32_t>(p.split);
    const auto rank = static_cast<std::uint32_t>(list.rank);
    const int shift = count_bits(blocks - 1);
    const std::uint32_t slots = (T::kEights + blocks - 1) >> shift;       // most groups of a block
    const std::uint32_t own = (T::kEights - rank + blocks - 1) >> shift;  // groups of this block
    const auto place = [&](std::uint32_t part, std::uint32_t slot) {
      return s.partials() + ((part * slots + slot) * T::kConsumers + me) * 16;
    };
    // Waits until all blocks have read the previous exchange.
    barrier_wait(s.partials_empty(), round ^ 1);
    if (me == 0 && rank < T::kEights) {
      barrier_expect(s.partials_full(), own * blocks * T::kConsumers * 16);
    }
    LATHE_UNROLL
    for (std::uint32_t j = 0; j < T::kEights; ++j) {
      store_async_of(place(rank, j >> shift), j & (blocks - 1),
                     {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]},
                     s.partials_full());
    }
    if (rank < T::kEights) {
      barrier_wait_cluster(s.partials_full(), round);
      LATHE_UNROLL
      for (std::uint32_t j = 0; j < T::kEights; ++j) {
        if ((j & (blocks - 1)) != rank) continue;
        float4 sum = load_floats(place(0, j >> shift));
        for (std::uint32_t part = 1; part < blocks; ++part) {
          const float4 v = load_floats(place(part, j >> shift));
          sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
        }
        acc[4 * j] = sum.x;
        acc[4 * j + 1] = sum.y;
        acc[4 * j + 2] = sum.z;
        acc[4 * j + 3] = sum.w;
      }
      sync_warp();
      if (lane < static_cast<int>(blocks)) {
        barrier_arrive_of(s.partials_empty(), static_cast<std::uint32_t>(lane));
      }
    }
    round ^= 1;
  }

  /// Whether this block stores group j of 8 tokens.
  __device__ bool owns(int j) const {
    return T::kPair || T::kGrouped || T::kWide || (j & (p.split - 1)) == list.rank;
  }

  /// Multiplies the sums over all of K by the factor of all scales, if the format has one.
  __device__ void apply_factor(const MatmulWork& w) {
    if constexpr (Format::kFactor) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const MatmulRow r = matmul_row(p, w, first_row(w) + warp * 16 + lane / 4, i);
        const float factor = Format::factor(p.weights[r.weight], w.group * p.scale_group);
        LATHE_UNROLL
        for (int j = 0; j < T::kEights; ++j) {
          acc[4 * j + 2 * i] *= factor;
          acc[4 * j + 2 * i + 1] *= factor;
        }
      }
    }
  }
  /// acc = the sum over all of K, for the tokens that this block stores, or over the part of a work
  /// tile that has only one.
  __device__ void sum(const MatmulWork& w) {
    if constexpr (!T::kPair && !T::kGrouped && !T::kWide) {
      Format::sum_part(*this, w, MatmulPart(p, list.rank));
      if (p.split > 1) exchange_parts();
    } else if constexpr (T::kDense) {
      const bool dense = list.is_dense(w);
      const std::int32_t parts = dense && p.dense.parts == 1 ? p.dense.split : 1;
      float total[kValues];
      LATHE_ROLLED
      for (std::int32_t part = 0;;) {
        Format::sum_part(*this, w, dense ? MatmulPart(p.dense, w.part + part) : MatmulPart(p, 0));
        if (part > 0) {
          LATHE_UNROLL
          for (int i = 0; i < kValues; ++i) acc[i] = total[i] + acc[i];
        }
        if (++part == parts) break;
        LATHE_UNROLL
        for (int i = 0; i < kValues; ++i) total[i] = acc[i];
      }
    } else if constexpr (T::kSpread) {
      Format::sum_part(*this, w, MatmulPart(p, w.part));
    } else if constexpr (T::kKeepsSums) {
      LATHE_ROLLED
      for (std::int32_t part = 0;;) {
        // Without it ptxas moves the sums between parts to other registers and back, in each chunk,
        // for which it waits.
        LATHE_UNROLL
        for (int i = 0; i < kValues; ++i) acc[i] = 0;
        Format::sum_part(*this, w, MatmulPart(p, part));
        if (part > 0) add_own_sums(p, s, acc);
        if (++part == p.split) break;
        begin_words();
        keep_own_sums(p, s, acc);
      }
    } else {
      Format::sum_part(*this, w, MatmulPart(p, 0));
      if constexpr (T::kPairSplits) {
        LATHE_ROLLED
        for (std::int32_t part = 1; part < p.split; ++part) {
          float total[kValues];
          LATHE_UNROLL
          for (int i = 0; i < kValues; ++i) total[i] = acc[i];
          Format::sum_part(*this, w, MatmulPart(p, part));
          LATHE_UNROLL
          for (int i = 0; i < kValues; ++i) acc[i] = total[i] + acc[i];
        }
      }
    }
  }

  /// Elements from the weight's out to the work tile's.
  __device__ std::int64_t out_offset(const MatmulWork& w) const {
    return list.is_dense(w) ? w.part * p.dense.out_part : w.group * p.out_group;
  }
  /// Adds the bias and stores. A thread holds tokens 8 j + 2 (lane % 4), + 1 of weight rows 16 warp
  /// + lane / 4, + 8.
  __device__ void store(const MatmulWork& w) const {
    const MatmulWeight& weight = p.weights[w.weight];
    const std::int32_t first = first_row(w);
    const std::int32_t end = first + rows() < weight.rows ? first + rows() : weight.rows;
    const std::int32_t row = first + warp * 16 + lane / 4;
    float bias[2] = {0, 0};
    if (weight.bias != nullptr) {
      const float* of_group = weight.bias + w.group * p.bias_group;
      if (row < end) bias[0] = of_group[row];
      if (row + 8 < end) bias[1] = of_group[row + 8];
    }
    if constexpr (T::kTall) return send_bf16(weight, w, bias);
    if constexpr (T::kStaged) {
      if (weight.staged) {
        if (weight.out_bf16) {
          send_bf16(weight, w, bias);
        } else {
          send_boxes(weight, w, bias);
        }
        return;
      }
    }
    if (weight.out_bf16) {
      store_bf16(weight, w, first + warp * 16, end, bias);
      return;
    }
    LATHE_UNROLL
    for (int j = 0; j < T::kEights; ++j) {
      if (!owns(j)) continue;
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const std::int32_t token = w.token + 8 * j + 2 * (lane & 3) + i;
        if (token >= w.end) continue;
        float* out =
            static_cast<float*>(weight.out) + out_offset(w) + token * weight.out_stride + row;
        LATHE_UNROLL
        for (int h = 0; h < 2; ++h) {
          if (row + 8 * h >= end) continue;
          const float v = acc[4 * j + 2 * h + i] + bias[h];
          if (weight.add) {
            add_global(out + 8 * h, v);
          } else {
            out[8 * h] = v;
          }
        }
      }
    }
  }
  /// Stores f32 through shared memory: TMA stores whole boxes, or adds them to memory without
  /// reading them here, while the next tile is summed.
  __device__ void send_boxes(const MatmulWeight& weight, const MatmulWork& w,
                             const float (&bias)[2]) const {
    constexpr int kEights = kMatmulOutTokens / 8;
    const void* map = &maps.out[w.weight];
    const bool sends = warp == 0 && elected() && first_row(w) < weight.rows;
    const auto row = static_cast<std::int32_t>(first_row(w) + w.group * p.out_group);
    LATHE_UNROLL
    for (int step = 0; step < T::kEights / kEights; ++step) {
      // Groups alternate between two buffers, so a tile sends an even number.
      if (step % 2 == 0 && w.token + step * kMatmulOutTokens >= w.end) return;
      const std::uint32_t boxes =
          s.out(group) + static_cast<std::uint32_t>(step % 2 * 2 * T::kOutBoxBytes);
      if (elected()) wait_box_groups<1>();  // previous contents have been sent
      group_sync(1 + group, 128);
      // 16-byte word c of a row of 32 floats is stored at c ^ (row % 8): no bank conflicts.
      const std::uint32_t at = boxes + static_cast<std::uint32_t>(warp / 2 * T::kOutBoxBytes);
      LATHE_UNROLL
      for (int x = 0; x < 4 * kEights; ++x) {
        const int token = x / 4 * 8 + 2 * (lane & 3) + x % 2;
        const int r = warp % 2 * 16 + (x >> 1 & 1) * 8 + lane / 4;
        store_float(
            at + static_cast<std::uint32_t>(token * 128 + ((r / 4 ^ token % 8) * 16) + r % 4 * 4),
            acc[4 * kEights * step + x] + bias[x >> 1 & 1]);
      }
      fence_async_proxy();
      group_sync(1 + group, 128);
      if (sends) {
        LATHE_UNROLL
        for (int box = 0; box < 2; ++box) {
          const std::uint32_t from = boxes + static_cast<std::uint32_t>(box * T::kOutBoxBytes);
          const std::int32_t x = row + box * kMatmulOutRows;
          const std::int32_t y = w.token + step * kMatmulOutTokens;
          if (weight.add) {
            add_f32_box(map, x, y, from);
          } else {
            store_box(map, x, y, from);
          }
        }
        end_box_group();
      }
    }
  }
  /// Address of word `word` of a token's kWords of bf16 results, swizzled as TMA reads boxes of
  /// that width. Eight words that are stored or loaded together are in different banks.
  template <int kWords>
  __device__ std::uint32_t out_word(int token, int word) const {
    const int turn = kWords == 8 ? token % 8 : token / 2 % 4;
    return s.out(group) + static_cast<std::uint32_t>((token * kWords + (word ^ turn)) * 16);
  }
  /// Call before words are written: waits until the previous contents have been sent.
  __device__ void begin_words() const {
    if (elected()) wait_box_groups<0>();
    group_sync(1 + group, 128);
  }
  /// Stores the words of tokens from `first` of the tile on, which all warps have written: kTokens
  /// tokens, kWords each, to columns from `column` on. A warp has 32 tokens at a time. TMA stores
  /// whole boxes while the next tile is summed. Others may reach into tokens of another tile or
  /// group, or rows of another weight; the warp stores their words.
  template <int kTokens, int kWords>
  __device__ void send_words(const MatmulWeight& weight, const MatmulWork& w, int first,
                             std::int32_t column, std::int32_t columns) const {
    fence_async_proxy();
    group_sync(1 + group, 128);
    const std::int32_t end = w.token + T::kTokens < w.end ? w.token + T::kTokens : w.end;
    LATHE_UNROLL
    for (int from = 0; from < kTokens; from += 4 * kMatmulOutTokens) {
      const int in_buffer = from + warp * kMatmulOutTokens;
      const std::int32_t token = w.token + first + in_buffer;
      if (warp_value(token + kMatmulOutTokens <= end && column + 8 * kWords <= columns)) {
        if (elected()) {
          store_box(&maps.out[w.weight], column + static_cast<std::int32_t>(w.group * p.out_group),
                    token, out_word<kWords>(in_buffer, 0));
        }
        continue;
      }
      LATHE_ROLLED
      for (int word = lane; word < kMatmulOutTokens * kWords; word += 32) {
        const int mine = word / kWords, to = column + word % kWords * 8;
        if (token + mine >= end || to >= columns) continue;
        auto* out = static_cast<std::uint16_t*>(weight.out) + w.group * p.out_group +
                    (token + mine) * weight.out_stride + to;
        *reinterpret_cast<uint4*>(out) =
            load_shared_u128(out_word<kWords>(in_buffer + mine, word % kWords));
      }
    }
    if (elected()) {
      end_box_group();
      end_box_group();  // an empty one, as send_boxes() does not wait for the last
    }
  }
  /// Stores bf16 through shared memory, so that whole sectors are written.
  __device__ void send_bf16(const MatmulWeight& weight, const MatmulWork& w,
                            const float (&bias)[2]) const {
    const std::uint32_t to = out_word<8>(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
    LATHE_UNROLL
    for (int step = 0; step < (T::kEights + 15) / 16; ++step) {
      if (warp_value(w.token + 128 * step >= w.end)) return;
      begin_words();
      LATHE_UNROLL
      for (int j = 0; j < 16; j += 2) {
        if (16 * step + j >= T::kEights) break;
        std::uint32_t v[4];
        LATHE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float* pair = acc + 4 * (16 * step + j) + 2 * i;
          v[i] = pack_bf16(pair[0] + bias[i % 2], pair[1] + bias[i % 2]);
        }
        store_matrices_trans(to + static_cast<std::uint32_t>(1024 * j), v[0], v[1], v[2], v[3]);
      }
      send_words<128, 8>(weight, w, 128 * step, first_row(w), weight.rows);
    }
  }
  /// Stores bf16 directly, two neighbouring weight rows at a time. first: the warp's first row.
  __device__ void store_bf16(const MatmulWeight& weight, const MatmulWork& w, std::int32_t first,
                             std::int32_t end, const float (&bias)[2]) const {
    const std::int32_t row = first + 2 * (lane & 3);
    LATHE_UNROLL
    for (int j = 0; j < T::kEights; ++j) {
      if (!owns(j)) continue;
      const std::int32_t token = w.token + 8 * j + lane / 4;
      LATHE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float* v = acc + 4 * j + 2 * h;
        const std::uint32_t pair = transpose_matrix(pack_bf16(v[0] + bias[h], v[1] + bias[h]));
        if (token < w.end && row + 8 * h < end) {
          *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(weight.out) +
                                            w.group * p.out_group + token * weight.out_stride +
                                            row + 8 * h) = pair;
        }
      }
    }
  }

  /// Stores activations; a thread has one row of gate and up each, and tokens 8 j + 2 (lane % 4), +
  /// 1.
  __device__ void store_gated(const MatmulWork& w) const {
    const MatmulWeight& weight = p.weights[w.weight];
    const std::int32_t first = first_row(w) + warp * 16;
    const std::int32_t end =
        first_row(w) + rows() < weight.rows ? first_row(w) + rows() : weight.rows;
    float bias[2] = {0, 0};
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const MatmulRow r = matmul_row(p, w, first + lane / 4, i);
      const float* of_weight = p.weights[r.weight].bias;
      if (of_weight != nullptr) bias[i] = of_weight[w.group * p.bias_group + r.row];
    }
    if constexpr (T::kTall) return send_gated(weight, w, bias);
    if constexpr (T::kStaged) {
      if (weight.staged) {
        send_gated(weight, w, bias);
        return;
      }
    }
    const std::int32_t row = first / 2 + 2 * (lane & 3);
    std::int32_t token = w.token + lane / 4;
    auto* out = static_cast<std::uint16_t*>(weight.out) + token * weight.out_stride + row;
    LATHE_UNROLL
    for (int j = 0; j < T::kEights; ++j, token += 8, out += 8 * weight.out_stride) {
      if (!owns(j)) continue;
      const std::uint32_t pair = transpose_matrix(gated_pair(w, j, bias));
      if (token < w.end && row < end / 2) *reinterpret_cast<std::uint32_t*>(out) = pair;
    }
  }
  /// Activations of tokens 8 j + 2 (lane % 4), + 1, as two bf16.
  __device__ std::uint32_t gated_pair(const MatmulWork& w, int j, const float (&bias)[2]) const {
    const bool up_first = (list.is_dense(w) ? p.dense.up_first : p.up_first) != 0;
    float v[2];
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float a = acc[4 * j + i] + bias[0], b = acc[4 * j + 2 + i] + bias[1];
      v[i] = activated(p.activation, up_first ? b : a, up_first ? a : b);
      if (!list.is_dense(w) || p.dense.factor == nullptr) continue;
      const std::int32_t token = w.token + 8 * j + 2 * (lane & 3) + i;
      if (token < w.end) v[i] = times_sigmoid(v[i], p.dense.factor[token * p.dense.factor_stride]);
    }
    return pack_bf16(v[0], v[1]);
  }
  __device__ void send_gated(const MatmulWeight& weight, const MatmulWork& w,
                             const float (&bias)[2]) const {
    const std::uint32_t to = out_word<4>(lane, warp);
    begin_words();
    LATHE_UNROLL
    for (int j = 0; j < T::kEights; j += 4) {
      if (warp_value(w.token + 8 * j >= w.end)) break;
      std::uint32_t v[4];
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) v[i] = gated_pair(w, j + i, bias);
      store_matrices_trans(to + static_cast<std::uint32_t>(512 * j), v[0], v[1], v[2], v[3]);
    }
    send_words<T::kTokens, 4>(weight, w, 0, first_row(w) / 2, weight.rows / 2);
  }

  /// Loads the scales of a work tile's weights from chunk `begin` on.
  __device__ void load_scales(const MatmulWork& w, std::int32_t begin, std::int32_t end,
                              MatmulWarpScales& to) const {
    to.load(MatmulFactors(p, w, first_row(w) + warp * 16 + lane / 4), begin, end, lane);
  }
  /// The list's work tile, if there is one, and its scales.
  __device__ MatmulWork find_work(MatmulWarpScales& to) {
    if (!list.more()) return {};
    const MatmulWork w = list.work();
    if constexpr (kWarpScales) {
      const MatmulPart part = list.chunks(w);
      load_scales(w, part.begin, part.end, to);
    }
    return w;
  }
  __device__ void store_tile(const MatmulWork& w) {
    apply_factor(w);
    if (p.gate_step != 0) {
      store_gated(w);
    } else {
      store(w);
    }
  }

  /// Finds each work tile, and loads its scales, while the one before is computed.
  __device__ void run_tiles() {
    list.start();
    MatmulWarpScales next_scales;
    // Weights do not depend on the previous launch.
    MatmulWork next = find_work(next_scales);
    // The stores may overwrite what the previous launch reads, or add to what it writes.
    wait_for_previous();
    while (list.more()) {
      const MatmulWork w = next;
      scales = next_scales;
      list.next();
      next = find_work(next_scales);
      sum(w);
      store_tile(w);
    }
  }
  /// The producer finds the work tiles.
  __device__ void run_pair() {
    wait_for_previous();  // as in run_tiles()
    list.start();
    for (int n = 0; list.more(); list.next(), ++n) {
      wait_full();
      sum(list.get(n));
      if constexpr (T::kSpread) {
        const bool joined = join_parts<T>(p, list.get(n).part, acc);
        if (!warp_value(joined)) continue;
      }
      store_tile(list.get(n));  // there are no registers for it next to the sums
    }
  }
  __device__ void run() {
    if constexpr (T::kPair) {
      run_pair();
    } else {
      run_tiles();
    }
    // Shared memory may be freed only after TMA has read the boxes from it.
    if constexpr (T::kStaged) wait_box_groups<0>();
  }
};

}  // namespace lathe::cuda
