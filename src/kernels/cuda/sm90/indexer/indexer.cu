// Launches the indexer's kernels: logits of a row's keys, and the exact top-k.
#include "kernels/cuda/sm90/indexer/indexer.h"

#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/indexer/hadamard_rows.cuh"
#include "kernels/cuda/sm90/indexer/key_groups.cuh"
#include "kernels/cuda/sm90/indexer/logits.cuh"
#include "kernels/cuda/sm90/indexer/logits_wgmma.cuh"
#include "kernels/cuda/sm90/indexer/select.cuh"
#include "kernels/cuda/sm90/indexer/select_sampled.cuh"
#include "kernels/cuda/sm90/indexer/select_short.cuh"

namespace lathe::cuda {

cudaError_t launch_count_up(std::int32_t* slots, const std::int32_t* like, std::int64_t count,
                            cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch_kernel(
      count_up_kernel,
      {.grid = blocks_for(count, kSlotThreads), .block = kSlotThreads, .early = true}, stream,
      slots, like, count);
}

namespace {

// From this number on, rows are taken for a prompt's, which share keys.
constexpr std::int64_t kPromptRows = 256;

// Tiles of keys of a block: such that the blocks that run at a time end together, after two turns
// at least if there is enough work, because rows have different numbers of keys.
std::int64_t tiles_of_block(std::int64_t row_blocks, std::int64_t tiles, std::int64_t at_a_time) {
  constexpr std::int64_t kMost = 64, kBegin = 2;  // tiles that take as long as a block's begin
  std::int64_t best = 1, least = -1;
  for (std::int64_t parts = 1; parts <= tiles; ++parts) {
    const std::int64_t each = blocks_for(tiles, parts), blocks = row_blocks * parts;
    if (each > kMost || (blocks <= at_a_time && parts < tiles)) continue;
    const std::int64_t cost = blocks_for(blocks, at_a_time) * (each + kBegin);
    if (least >= 0 && cost >= least) continue;
    least = cost;
    best = each;
  }
  return best;
}

template <int kHeads, int kRows>
cudaError_t launch_wgmma(const IndexLogits& p, cudaStream_t stream) {
  using W = LogitsWgmma<kHeads, kRows>;
  constexpr auto kKernel = index_logits_wgmma_kernel<kHeads, kRows>;
  if (const cudaError_t status = allow_shared<kKernel>(W::kSharedBytes); status != cudaSuccess) {
    return status;
  }
  const std::int64_t tiles = blocks_for(p.cols, W::kKeys);
  const std::int64_t row_blocks = blocks_for(p.rows, kRows);
  const std::int64_t each = tiles_of_block(row_blocks, tiles, 132 * W::kBlocksPerSm);
  int box_rows = 8;
  while (box_rows < W::kKeys && p.keys.page_tokens % (2 * box_rows) == 0) box_rows *= 2;
  const LogitsWork work{.tiles_each = static_cast<std::int32_t>(each),
                        .page_of = FastDiv(p.keys.page_tokens),
                        .box_rows = box_rows};
  CUtensorMap keys{};
  if (const cudaError_t status = make_page_map(keys, {.base = p.keys.data,
                                                      .pages = p.keys.pages,
                                                      .page_stride = p.keys.page_stride,
                                                      .page_rows = p.keys.page_tokens,
                                                      .row_bytes = W::kDim,
                                                      .element_bytes = 1,
                                                      .box_rows = box_rows});
      status != cudaSuccess) {
    return status;
  }
  return launch_kernel(kKernel,
                       {.grid = dim3(static_cast<unsigned>(row_blocks), blocks_for(tiles, each)),
                        .block = W::kThreads,
                        .shared_bytes = W::kSharedBytes,
                        .early = true},
                       stream, p, work, keys);
}

template <int kHeads>
cudaError_t launch_wgmma(const IndexLogits& p, cudaStream_t stream) {
  return p.rows >= kPromptRows ? launch_wgmma<kHeads, 4>(p, stream)
                               : launch_wgmma<kHeads, 1>(p, stream);
}

// True where pages can be copied in units of 16 bytes and used by the tensor cores as they are, and
// have whole boxes.
bool fits_wgmma(const IndexPages& pages) {
  return pages.dim == 128 && pages.page_stride % 16 == 0 && pages.page_tokens % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(pages.data) % 16 == 0;
}

}  // namespace

cudaError_t launch_hadamard_rows(const HadamardRows& p, cudaStream_t stream) {
  const std::int64_t heads = p.rows * p.heads;
  if (heads == 0) return cudaSuccess;
  return launch_kernel(
      hadamard_rows_kernel,
      {.grid = blocks_for(heads, kHadamardWarps), .block = kHadamardThreads, .early = true}, stream,
      p);
}

cudaError_t launch_index_logits(const IndexLogits& p, cudaStream_t stream) {
  if (p.rows == 0 || p.cols == 0) return cudaSuccess;
  if (p.keys.pages > 0 && fits_wgmma(p.q) && fits_wgmma(p.keys)) {
    if (p.heads == 16) return launch_wgmma<16>(p, stream);
    if (p.heads == 32) return launch_wgmma<32>(p, stream);
    if (p.heads == 64) return launch_wgmma<64>(p, stream);
  }
  constexpr int kMost = 160 << 10;  // enough for 256 heads of 128 dims and a tile of keys
  const auto bytes = static_cast<std::int32_t>(score_shared_floats(p) * 4);
  if (const cudaError_t status = allow_shared<index_logits_kernel>(kMost); status != cudaSuccess) {
    return status;
  }
  return launch_kernel(index_logits_kernel,
                       {.grid = dim3(static_cast<unsigned>(p.rows), blocks_for(p.cols, kScoreKeys)),
                        .block = kScoreThreads,
                        .shared_bytes = bytes,
                        .early = true},
                       stream, p);
}

cudaError_t launch_take_choices(const TakeChoices& choices, cudaStream_t stream) {
  if (choices.select.rows == 0) return cudaSuccess;
  TakeChoices p = choices;
  p.select.page_of = FastDiv(p.select.page_tokens);
  return launch_kernel(
      take_choices_kernel,
      {.grid = static_cast<unsigned>(p.select.rows), .block = kSlotThreads, .early = true}, stream,
      p);
}

cudaError_t launch_list_groups(const ListGroups& list, cudaStream_t stream) {
  if (list.rows == 0 || list.width == 0) return cudaSuccess;
  ListGroups p = list;
  p.key_of = FastDiv(p.group);
  return launch_kernel(
      list_groups_kernel,
      {.grid = static_cast<unsigned>(p.rows), .block = kGroupThreads, .early = true}, stream, p);
}

namespace {

constexpr std::int64_t kSms = 132;

// Blocks of a row: as many as keep its scores in shared memory, and more where few rows would leave
// SMs idle.
int blocks_of_row(const SelectSlots& p) {
  constexpr std::int64_t kLeast = 2048;
  int blocks = 1;
  const auto wants_more = [&] {
    return p.cols > blocks * std::int64_t{kTileKeys} ||
           (p.rows * blocks * 2 <= kSms && p.cols >= blocks * 2 * kLeast);
  };
  while (blocks < kMostTeamBlocks && wants_more()) blocks *= 2;
  return blocks;
}

/// kMarked: by select_marked_kernel.
template <bool kMarked>
cudaError_t launch_exact(const SelectSlots& p, cudaStream_t stream) {
  constexpr auto kKernel = kMarked ? select_marked_kernel : select_slots_kernel;
  if (const cudaError_t status = allow_shared<kKernel>(sizeof(SelectShared));
      status != cudaSuccess) {
    return status;
  }
  const int blocks = blocks_of_row(p);
  const std::int64_t teams = kMarked ? std::min(p.rows, 2 * kSms / blocks) : p.rows;
  return launch_kernel(kKernel,
                       {.grid = static_cast<unsigned>(teams * blocks),
                        .block = kSelectThreads,
                        .shared_bytes = sizeof(SelectShared),
                        .cluster = blocks,
                        .early = true},
                       stream, p, blocks);
}

template <int kThreads, bool kStreams = false>
cudaError_t launch_sampled(const SelectSlots& p, int blocks, cudaStream_t stream) {
  using Shared = SampledShared<kThreads, kStreams>;
  constexpr auto kKernel = sampled_slots_kernel<kThreads, kStreams>;
  if (const cudaError_t status = allow_shared<kKernel>(sizeof(Shared)); status != cudaSuccess) {
    return status;
  }
  static_assert(Shared::kBlocksPerSm * (sizeof(Shared) + 1024) <= 228 << 10);
  const std::int64_t teams = std::min(p.rows, kSms * Shared::kBlocksPerSm / blocks);
  const cudaError_t status = launch_kernel(kKernel,
                                           {.grid = static_cast<unsigned>(teams * blocks),
                                            .block = kThreads,
                                            .shared_bytes = sizeof(Shared),
                                            .cluster = blocks,
                                            .early = true},
                                           stream, p, blocks);
  return status == cudaSuccess ? launch_exact<true>(p, stream) : status;
}

// Whether rows are long enough for a sample, and can be copied in units of 16 bytes.
bool fits_sampled(const SelectSlots& p) {
  return p.k <= kSampledMostK && p.cols >= 2 * p.k && p.cols >= 4096 && p.cols % 4 == 0 &&
         p.cols <= kMostTeamBlocks * std::int64_t{SampledShared<1024, false>::kKeys} &&
         reinterpret_cast<std::uintptr_t>(p.logits) % 16 == 0;
}

cudaError_t launch_sampled(const SelectSlots& p, cudaStream_t stream) {
  constexpr std::int64_t kLeast = 4096;  // keys of a block
  if (p.rows > kSms && p.cols <= SampledShared<512, true>::kKeys) {
    return launch_sampled<256, true>(p, 1, stream);
  }
  int blocks = 1;
  while (blocks < kMostTeamBlocks &&
         (p.cols > blocks * std::int64_t{SampledShared<1024, false>::kKeys} ||
          (p.rows * blocks * 2 <= kSms && p.cols >= blocks * 2 * kLeast))) {
    blocks *= 2;
  }
  const std::int64_t keys = blocks_for(p.cols, 32 * blocks) * 32;  // of a block
  if (keys <= SampledShared<256, false>::kKeys) return launch_sampled<256>(p, blocks, stream);
  if (keys <= SampledShared<512, false>::kKeys) return launch_sampled<512>(p, blocks, stream);
  return launch_sampled<1024>(p, blocks, stream);
}

// Whether rows have their SMs to themselves, and few enough keys for one block.
bool fits_short(const SelectSlots& p) {
  return p.rows <= kSms && p.cols > 0 && p.cols <= kShortKeys;
}

cudaError_t launch_short(const SelectSlots& p, cudaStream_t stream) {
  return launch_kernel(
      p.cols <= kShortKeys / 2 ? short_slots_kernel<4> : short_slots_kernel<8>,
      {.grid = static_cast<unsigned>(p.rows), .block = kShortThreads, .early = true}, stream, p);
}

}  // namespace

cudaError_t launch_select_slots(const SelectSlots& select, cudaStream_t stream) {
  if (select.rows == 0 || select.k == 0) return cudaSuccess;
  SelectSlots p = select;
  p.page_of = FastDiv(p.page_tokens);
  if (fits_short(p)) return launch_short(p, stream);
  return fits_sampled(p) ? launch_sampled(p, stream) : launch_exact<false>(p, stream);
}

}  // namespace lathe::cuda
