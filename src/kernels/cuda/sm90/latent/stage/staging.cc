// Decides whether a prefill stages the fp8 pages that its lists point to, and places their arrays.
#include "kernels/cuda/sm90/latent/stage/staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lathe::cuda {
namespace {

constexpr std::int64_t kAlign = 256;

std::int64_t padded(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
std::int64_t page_bytes(const LatentPool& pool) { return pool.page_tokens * pool.row_elems * 2; }
/// Bytes of marks and numbers of a pool's pages, the numbered pages, their count, and rewritten
/// lists.
std::int64_t map_bytes(const LatentPool& pool, std::int64_t rows) {
  return padded(pool.pages) + padded(pool.pages * 2) + padded(pool.pages * 4) + padded(4) +
         padded(rows * pool.width * 4);
}

}  // namespace

bool has_fp8_pages(const KeySource& s) {
  return s.pool && s.pool->layout.kind() != LayoutKind::mla_bf16;
}

LatentPool listed_pool(const KeySource& s) {
  if (!has_fp8_pages(s) || s.index_width == 0 || s.pool->pages == 0) return {};
  return {s.pool->pages, s.pool->page_size, s.pool->layout.row_elems(), s.index_width};
}

std::int64_t LatentStage::bytes() const {
  return room == 0 ? 0 : map_bytes(pool, rows) + padded(room * page_bytes(pool));
}

std::int64_t LatentCut::partial_bytes() const {
  return padded(partials() * m_blocks * block_m * (kLatentValue + 1) * 4);
}
std::int64_t LatentCut::workspace_bytes() const {
  return partial_bytes() + (main.room == 0 ? 0 : kAlign + main.bytes() + extra.bytes());
}

void stage_latent(const LatentShape& shape, LatentCut& cut) {
  const bool fits = !shape.dense && !shape.fp8 && cut.block_m == 64 && !cut.all.cut() &&
                    shape.main.pages > 0 &&
                    std::max(shape.main.pages, shape.extra.pages) <= kMostStagedPages;
  if (!fits) return;
  const bool two = shape.extra.pages > 0;
  const std::int64_t left = kLatentPartialBytes - cut.partial_bytes();
  const auto stage = [&](const LatentPool& pool) {
    const std::int64_t bytes = left / (two ? 2 : 1) - 2 * kAlign - map_bytes(pool, shape.rows);
    const std::int64_t room = std::clamp<std::int64_t>(bytes / page_bytes(pool), 0, pool.pages);
    return LatentStage{pool, shape.rows, room};
  };
  cut.main = stage(shape.main);
  if (two) cut.extra = stage(shape.extra);
  if (cut.main.room == 0 || (two && cut.extra.room == 0)) cut.main = cut.extra = {};
}

bool stage_pays(const LatentShape& s, const LatentCut& cut) {
  if (cut.main.room == 0) return false;
  const auto tokens_of = [](const LatentStage& stage) {
    return stage.room * stage.pool.page_tokens;
  };
  std::int64_t tokens = tokens_of(cut.main) + tokens_of(cut.extra);
  // If lists may hold more tokens than there is room for, they rarely turn out to fit.
  if (s.tokens > tokens) return false;
  if (s.tokens > 0) tokens = s.tokens;
  // Seconds, measured on an H200 (bench/notes/m64-fp8/08-staged-pages.md): staging saves a tenth of
  // the time of reading in place; it costs launches, lists, and writing and reading each token.
  const double rows = static_cast<double>(s.rows), keys = static_cast<double>(s.keys);
  const double saved = 0.1 * rows * keys * s.heads * 2 * (576 + kLatentValue) / 600e12;
  return saved > 15e-6 + rows * keys * 5e-12 + static_cast<double>(tokens) * 0.6e-9;
}

LatentStaging::LatentStaging(const LatentCut& cut, std::byte* workspace) {
  const LatentStage* stages[2] = {&cut.main, &cut.extra};
  arrays.sources = cut.extra.room > 0 ? 2 : 1;
  std::byte* at = workspace + cut.partial_bytes();
  std::byte* const begin = at;
  const auto take = [&](std::int64_t bytes) { return std::exchange(at, at + padded(bytes)); };
  const auto ints = [&](std::int64_t n) { return reinterpret_cast<std::int32_t*>(take(n * 4)); };
  arrays.overflow = ints(1);
  for (int i = 0; i < arrays.sources; ++i) {
    arrays.of[i].marks = reinterpret_cast<std::uint8_t*>(take(stages[i]->pool.pages));
  }
  zeros = {begin, at};
  for (int i = 0; i < arrays.sources; ++i) {
    const LatentStage& stage = *stages[i];
    LatentStageArray& a = arrays.of[i];
    a.pages = static_cast<std::int32_t>(stage.pool.pages);
    a.room = static_cast<std::int32_t>(stage.room);
    a.places = reinterpret_cast<std::uint16_t*>(take(stage.pool.pages * 2));
    a.list = ints(stage.pool.pages);
    a.count = ints(1);
    a.lists = ints(stage.rows * stage.pool.width);
    a.rows = take(stage.room * page_bytes(stage.pool));
    may_overflow = may_overflow || stage.room < stage.pool.pages;
  }
}

LatentParams LatentStaging::rows_of(const LatentParams& p, const LatentCut& cut) const {
  LatentParams out = p;
  out.early = true;
  const auto rows = [&](LatentSource& s, const LatentStage& stage, const LatentStageArray& a) {
    s.pages = a.rows;
    s.page_stride = stage.pool.row_elems * 2;
    s.page_size = FastDiv(1);
    s.pages_count = static_cast<std::int32_t>(stage.room * stage.pool.page_tokens);
    s.indices = a.lists;
    s.table = nullptr;
  };
  rows(out.main, cut.main, arrays.of[0]);
  if (arrays.sources > 1) rows(out.extra, cut.extra, arrays.of[1]);
  return out;
}

Result<void> check_staged(const AttendArgs& args, const LatentCut& cut) {
  const auto check = [](const char* name, const LatentPool& pool,
                        const LatentPool& staged) -> Result<void> {
    if (pool == staged) return {};
    const auto words = [](const LatentPool& p) {
      return p.pages == 0 ? std::string("none")
                          : fmt::format("{} pages of {} tokens, lists of {}", p.pages,
                                        p.page_tokens, p.width);
    };
    return Error{ErrorCode::invalid_argument, fmt::format("{}.pool", name),
                 "fp8 as schedule.cut stages, " + words(staged), words(pool), ""};
  };
  if (args.q.rows != cut.main.rows) {
    return Error{ErrorCode::invalid_argument, "q.rows",
                 fmt::format("{}, as schedule.cut stages", cut.main.rows),
                 fmt::format("{}", args.q.rows), ""};
  }
  if (auto ok = check("main", listed_pool(args.main), cut.main.pool); !ok) return ok;
  const bool two = args.problem.two_sources();
  return check("extra", two ? listed_pool(args.extra) : LatentPool{}, cut.extra.pool);
}

}  // namespace lathe::cuda
