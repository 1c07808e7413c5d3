// Few rows of x times weights in their stored form. Included in matmul_bf16.cc, between
// LATHE_TARGET_BEGIN(LATHE_BF16_DOT) and LATHE_TARGET_END.

namespace lathe {
namespace {

constexpr std::int64_t kPrefetchBytes = 2048;  // distance, per run

// A group of rows of x times tiles of weight rows. The weight rows are divided into consecutive
// runs, and a tile has one row of each run: memory is read fastest in a few long streams.
struct DirectRuns {
  const MatmulSlice& slice;
  const std::uint16_t* packed;  // [K blocks][groups][steps, rows, 32]
  std::int64_t first;           // first row of the group, in the slice
  std::int64_t out;             // first weight row of the first run
  std::int64_t runs;            // up to kOuts; sums of missing runs are not read
  std::int64_t run;             // weight rows per run
  std::int64_t begin, end;      // the tiles to multiply: rows begin .. end of every run
  std::int64_t k, k_end;        // range of K, whole blocks; all of K unless end - begin is 1
  float* carried;               // [rows, kOuts] sums of earlier blocks, if not all of K
  std::int64_t prefetch_begin, prefetch_end;  // the runs that this group prefetches
};

// Aligned to a cache line: at other addresses decode of a model was up to 7 % slower.
template <class W, int kOuts, int kRows>
__attribute__((noinline, aligned(64))) void direct_runs(const W& codes, const DirectRuns& t) {
  const Product& p = *t.slice.product;
  const std::int64_t depth = p.w.cols;
  const bool factors = has_factors(p.w);
  constexpr std::int64_t kPrefetch = kPrefetchBytes / 64 * W::kLine;
  const W c = codes;
  typename W::At w[kOuts];
  LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
    w[i] = W::at(p.w) + (t.out + least(i, t.runs - 1) * t.run + t.begin) * depth;
  }
  const bool whole = t.prefetch_end - t.prefetch_begin == kOuts;
  const bool to_first_level = W::kLocality == 3 || streams_through_first_level();
  float* to[kRows];
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    to[r] = reinterpret_cast<float*>(p.out.row(t.slice.row + t.first + r));
  }
  for (std::int64_t n = t.begin; n < t.end; ++n) {
    __m128 sums[kRows][kOuts / 4] = {};
    if (t.k > 0) __builtin_memcpy(sums, t.carried, sizeof(sums));
    for (std::int64_t block = t.k; block < t.k_end; block += kDepthBlock) {
      const std::int64_t end = least(block + kDepthBlock, depth);
      const std::int64_t padded = (end - block + W::kStep - 1) / W::kStep * W::kStep;
      const std::uint16_t* x = t.packed + block * t.slice.rows + t.first * padded;
      // Prefetch what follows in the run, or at its end what follows all runs.
      const bool ends = n * depth + block + kPrefetch >= t.run * depth;
      const std::int64_t ahead = kPrefetch + (ends ? (t.runs - 1) * t.run * depth : 0);
      __m512 acc[kRows][kOuts];
      LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
        LATHE_UNROLL for (int r = 0; r < kRows; ++r) acc[r][i] = _mm512_setzero_ps();
      }
      std::int64_t k = block;
      for (; k + W::kStep <= end; k += W::kStep) {
        if (whole && to_first_level) {
          LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
            __builtin_prefetch(W::address(w[i] + (k + ahead)), 0, 3);
          }
        } else if (whole) {
          LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
            __builtin_prefetch(W::address(w[i] + (k + ahead)), 0, 2);
          }
        } else {
          typename W::At row = w[0] + t.prefetch_begin * t.run * depth;
          for (std::int64_t i = t.prefetch_begin; i < t.prefetch_end; ++i, row += t.run * depth) {
            __builtin_prefetch(W::address(row + (k + ahead)), 0, 3);
          }
        }
        LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
          __m512i wide[W::kVectors];
          c.load(w[i] + k, wide);
          LATHE_UNROLL for (int v = 0; v < W::kVectors; ++v) {
            if (kRows > 1) keep_in_register(wide[v]);
            LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
              acc[r][i] =
                  dot(acc[r][i], wide[v], _mm512_loadu_si512(x + (v * kRows + r) * kPairLanes));
            }
          }
        }
        x += kRows * W::kStep;
      }
      if (k < end) {
        LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
          __m512i wide[W::kVectors];
          c.load(w[i] + k, end - k, wide);
          LATHE_UNROLL for (int v = 0; v < W::kVectors; ++v) {
            if (kRows > 1) keep_in_register(wide[v]);
            LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
              acc[r][i] =
                  dot(acc[r][i], wide[v], _mm512_loadu_si512(x + (v * kRows + r) * kPairLanes));
            }
          }
        }
      }
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
        LATHE_UNROLL for (int i = 0; i < kOuts / 4; ++i) {
          sums[r][i] = _mm_add_ps(sums[r][i], sums4(acc[r] + 4 * i));
        }
      }
    }
    if (t.k_end < depth) {
      __builtin_memcpy(t.carried, sums, sizeof(sums));
      return;
    }
    LATHE_UNROLL for (int i = 0; i < kOuts; ++i) w[i] += depth;
    LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
      if (i >= t.runs) break;
      const std::int64_t out = t.out + i * t.run + n;
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
        float y = sums[r][i / 4][i % 4];
        if (factors) y *= factor_of(p.w, out);
        if (p.bias != nullptr) y += p.bias[out];
        to[r][out] = p.add ? to[r][out] + y : y;
      }
    }
  }
}

template <class W, int kOuts>
LATHE_INLINE void direct_rows(const W& codes, const DirectRuns& t, std::int64_t rows) {
  constexpr int kMost = 24 / kOuts;
  switch (rows) {
    case 1:
      return direct_runs<W, kOuts, 1>(codes, t);
    case 2:
      return direct_runs<W, kOuts, 2>(codes, t);
    case 3:
      return direct_runs<W, kOuts, 3>(codes, t);
    case 4:
      return direct_runs < W, kOuts, kMost < 4 ? 1 : 4 > (codes, t);
    case 5:
      return direct_runs < W, kOuts, kMost < 5 ? 1 : 5 > (codes, t);
    default:
      return direct_runs < W, kOuts, kMost < 6 ? 1 : 6 > (codes, t);
  }
}

// Weights are read from memory once: to registers, or to the first-level cache if there are several
// groups of rows. K is the inner loop, because memory is read fastest in long streams.
template <class W, int kOuts>
void few_rows(const MatmulSlice& s, std::uint16_t* packed) {
  const Product& p = *s.product;
  const std::int64_t depth = p.w.cols;
  const Groups groups(s.rows, 24 / kOuts);
  const W codes;
  const auto multiply = [&](std::int64_t out, std::int64_t runs, std::int64_t run) {
    if (groups.groups == 1) {
      const DirectRuns t{s, packed, 0, out, runs, run, 0, run, 0, depth, nullptr, 0, kOuts};
      return direct_rows<W, kOuts>(codes, t, s.rows);
    }
    // All groups multiply a block of a tile before the next block, so that it stays in the cache.
    for (std::int64_t i = 0; i < run; ++i) {
      float carried[kMostFewRows * kOuts];
      for (std::int64_t k = 0; k < depth; k += kDepthBlock) {
        for (std::int64_t g = 0; g < groups.groups; ++g) {
          const std::int64_t first = groups.first(g);
          const DirectRuns t{s,
                             packed,
                             first,
                             out,
                             runs,
                             run,
                             i,
                             i + 1,
                             k,
                             least(k + kDepthBlock, depth),
                             carried + first * kOuts,
                             kOuts * g / groups.groups,
                             kOuts * (g + 1) / groups.groups};
          direct_rows<W, kOuts>(codes, t, groups.first(g + 1) - first);
        }
      }
    }
  };
  const std::int64_t end = s.out + s.outs;
  // One part of the slice after another; the outputs of a part share their scales.
  for (std::int64_t out = s.out, next; out < end; out = next) {
    next = scales_of(p.w, out, 0) == nullptr ? end
                                             : least(end, (out / kWeightBlock + 1) * kWeightBlock);
    for (std::int64_t k = 0; k < depth; k += kDepthBlock) {
      pack_rows<W>(s, groups, k, least(kDepthBlock, depth - k), scales_of(p.w, out, k),
                   packed + k * s.rows);
    }
    const std::int64_t run = (next - out) / kOuts;
    const std::int64_t rest = (next - out) % kOuts;
    if (run > 0) multiply(out, kOuts, run);
    if (rest > 0) multiply(next - rest, rest, 1);
  }
}

}  // namespace
}  // namespace lathe
