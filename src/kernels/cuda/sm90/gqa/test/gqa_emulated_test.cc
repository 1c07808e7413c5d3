// Runs the grouped-query kernels thread by thread on the CPU (common/emulator.h), and compares them
// with the oracle in double precision. Covers addresses, swizzles, counts and parities of barriers,
// and roles that wait for one another.
// Compiled alone: it includes kernels.
#include <fmt/format.h>

#include "kernels/cuda/sm90/gqa/gqa_limits.h"
#include "kernels/cuda/sm90/gqa/test/gqa_checks.h"
// Device code comes last: it redefines CUDA's keywords.
#include "kernels/cuda/sm90/gqa/test/gqa_emulation.h"

namespace lathe::cuda {
namespace {

void check(Bf16Scene& s, int sms, DType out = DType::bf16) {
  expect_oracle(attend(s.args, sms, out), s.oracle());
}

// Layout, dims of a key, KV heads.
class GqaEmulated : public ::testing::TestWithParam<std::tuple<LayoutKind, int, int>> {
 protected:
  LayoutKind kind() const { return std::get<0>(GetParam()); }
  int dim() const { return std::get<1>(GetParam()); }
  int value_dim() const { return dim() == kGqaWideKey ? kGqaWideKeyValue : dim(); }
  int kv_heads() const { return std::get<2>(GetParam()); }
  GqaDims dims(int page, int group) const { return dims(page, group, kv_heads()); }
  GqaDims dims(int page, int group, int kv_heads) const {
    return {kind(), page, group * kv_heads, kv_heads, dim(), value_dim()};
  }
};

TEST_P(GqaEmulated, Decodes) {
  // Whole items, and items split among two to four workers.
  for (const int page : {16, 32, 64, 128}) {
    for (const int sms : {1, 3}) {
      SCOPED_TRACE(fmt::format("page {} SMs {}", page, sms));
      Bf16Scene s(dims(page, 4), {{70, 1}, {0, 1}, {1, 1}, {64, 1}, {300, 1}});
      check(s, sms, page == 32 ? DType::f32 : DType::bf16);
    }
  }
}

TEST_P(GqaEmulated, VerifiesAndExtends) {
  // M blocks of 8 to 64 M rows; several blocks, some of which begin in the middle of a row.
  for (const int group : {1, 2, 3, 7, 16}) {
    for (const int rows : {2, 5, 23}) {
      SCOPED_TRACE(fmt::format("group {} rows {}", group, rows));
      Bf16Scene s(dims(16, group), {{90, rows}, {rows, rows}, {131, 1}});
      check(s, 2);
    }
  }
}

TEST_P(GqaEmulated, RowsOfOutBeginAnywhere) {
  for (const int rows : {1, 23}) {
    for (const DType out : {DType::bf16, DType::f32}) {
      for (const int padding : {1, 2}) {
        SCOPED_TRACE(fmt::format("rows {} {} padding {}", rows, name(out), padding));
        Bf16Scene s(dims(16, 16), {{90, rows}, {rows, rows}});
        expect_oracle(attend(s.args, 2, out, padding), s.oracle());
      }
    }
  }
}

TEST_P(GqaEmulated, Windows) {
  for (const int window : {1, 20, 64, 100}) {
    for (const int rows : {1, 3, 12, 30}) {
      SCOPED_TRACE(fmt::format("window {} rows {}", window, rows));
      Bf16Scene s(dims(16, 4), {{230, rows}, {64, rows}, {rows, rows}, {150, 1}});
      s.args.problem.window = window;
      s.drop_left_pages();
      check(s, 2);
    }
  }
}

// Rows of one chunk and of several, decoded, verified and in prompts, whose tiles begin before the
// chunk or with it. Pages before the first row's chunk are gone.
TEST_P(GqaEmulated, Chunks) {
  for (int i = 0; i < 8 * test_scale(); ++i) {
    const std::uint32_t seed = test_seed(300 + static_cast<std::uint32_t>(i));
    ref_test::Rng rng(seed);
    const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
    const int page = 16 << below(4), group = 1 + below(8), rows = i % 4 == 0 ? 1 : 4 << below(4);
    const int chunk = page * (1 + below(page < 64 ? 6 : 2));
    const GqaDims d = dims(page, group, 1 + below(2));
    Bf16Scene s(d, requests_about_edges(rng, 1 + below(4), rows, chunk, 3), seed);
    s.make_chunks(chunk / page);
    s.drop_left_pages();
    if (below(2) == 0) s.add_random_sink();
    const int sms = 1 + below(6);
    SCOPED_TRACE(fmt::format("seed {} group {} page {} chunk {} rows {} SMs {}", seed, group, page,
                             chunk, rows, sms));
    check(s, sms, below(2) == 0 ? DType::f32 : DType::bf16);
  }
}

// Each request has an M block more than its rows would fill.
TEST_P(GqaEmulated, EveryRequestEntersAnotherChunk) {
  Bf16Scene s(dims(16, 3), {{18, 4}, {33, 2}, {50, 5}});
  s.make_chunks(1);
  check(s, 2);
}

TEST_P(GqaEmulated, Sinks) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const int sms : {1, 4}) {
    Bf16Scene s(dims(16, 3), {{170, 2}, {0, 1}, {5, 1}});
    std::vector<float> sinks = {-inf, inf, 0, 100, -100, 2.5f};
    sinks.resize(static_cast<std::size_t>(s.dims.heads), -1.5f);
    s.add_sink(std::move(sinks));
    check(s, sms);
  }
}

TEST_P(GqaEmulated, HolesAreNoKeys) {
  for (const int rows : {1, 4, 9}) {
    SCOPED_TRACE(fmt::format("rows {}", rows));
    Bf16Scene s(dims(16, 4), {{150, rows}, {40, 1}, {16, 1}, {70, 1}, {230, 1}});
    s.batch.entry(0, 0) = PageId(-1);
    s.batch.entry(0, 4) = PageId(1 << 30);
    s.batch.entry(1, 2) = PageId(-5);
    s.batch.entry(2, 0) = PageId(-1);
    // Whole tiles of 64 and of 128 keys.
    for (int page = 0; page < 4; ++page) s.batch.entry(3, page) = PageId(-1);
    for (int page = 0; page < 9; ++page) s.batch.entry(4, page) = PageId(-1);
    s.batch.entry(4, 13) = PageId(-1);
    check(s, 2);
  }
}

// The last keys of tiles of 64 and of 128, and those after them.
TEST_P(GqaEmulated, EdgesOfTiles) {
  for (const int rows : {1, 2, 4}) {
    SCOPED_TRACE(fmt::format("rows {}", rows));
    Bf16Scene s(dims(32, 4), {{127, rows}, {128, rows}, {129, rows}, {192, rows}, {257, rows}});
    check(s, 3);
  }
}

TEST_P(GqaEmulated, RandomBatches) {
  for (int i = 0; i < 4 * test_scale(); ++i) {
    const std::uint32_t seed = test_seed(100 + static_cast<std::uint32_t>(i));
    ref_test::Rng rng(seed);
    const auto pick = [&](auto list) { return *(list.begin() + rng() % list.size()); };
    const int group = 1 + static_cast<int>(rng() % 16);
    GqaDims d = dims(pick(std::initializer_list<int>{16, 32, 64, 128}), group,
                     1 + static_cast<int>(rng() % 3));
    Bf16Scene s(
        d,
        random_requests(rng, 1 + static_cast<int>(rng() % 5), 1 + static_cast<int>(rng() % 6), 400),
        seed);
    if (rng() % 2 == 0) s.args.problem.window = 1 + static_cast<int>(rng() % 200);
    if (s.args.problem.window > 0) s.drop_left_pages();
    if (rng() % 2 == 0) s.add_random_sink();
    const int sms = 1 + static_cast<int>(rng() % 6);
    SCOPED_TRACE(fmt::format("seed {} group {} page {} window {} SMs {}", seed, group, d.page,
                             s.args.problem.window, sms));
    check(s, sms, rng() % 2 == 0 ? DType::f32 : DType::bf16);
  }
}

// With batch_invariant a request has the bits that it has alone, whatever is in the batch and
// whatever device computes it. Requests of no to three pieces; with windows and sinks; one M block
// and several, of 8 to 128 M rows.
TEST_P(GqaEmulated, BatchInvariantRowsAreThoseOfARequestAlone) {
  struct Case {
    int group, rows, window;
    bool sinks, chunked = false;
  };
  for (const Case& c : {Case{4, 1, 0, false}, Case{2, 3, 0, true}, Case{4, 1, 2500, true},
                        Case{5, 9, 0, false}, Case{16, 1, 0, false}, Case{7, 20, 100, false},
                        Case{4, 1, 2176, true, true}, Case{2, 3, 2048, false, true}}) {
    SCOPED_TRACE(fmt::format("group {} rows {} window {}{}", c.group, c.rows, c.window,
                             c.chunked ? " chunked" : ""));
    const int most = dim() > 128 || c.rows > 8 ? 2200 : 4200;
    Bf16Scene s(dims(64, c.group),
                {{70, c.rows}, {most, c.rows}, {0, c.rows}, {2048, c.rows}, {2049, c.rows}});
    s.args.problem.window = c.window;
    s.args.problem.chunked = c.chunked;
    if (c.sinks) s.add_random_sink();
    s.args.execution.batch_invariant = true;
    const ref_test::Outputs together = attend(s.args, 3);
    expect_oracle(together, s.oracle());
    for (std::size_t r = 0; r < s.args.kv_lens.size(); ++r) {
      AttendArgs one = s.args;
      const std::int32_t first = s.args.q_indptr[r];
      const std::vector<std::int32_t> indptr = {0, c.rows};
      one.q.data += bytes_of(one.q.dtype, first * one.q.row_stride);
      one.q.rows = c.rows;
      one.q_indptr = indptr;
      one.kv_lens = s.args.kv_lens.subspan(r, 1);
      const auto width = static_cast<std::size_t>(one.main.table_width);
      one.main.page_table = s.args.main.page_table.subspan(r * width, width);
      const ref_test::Outputs alone = attend(one, 1 + static_cast<int>(r));
      const auto same = [&](const auto& all, const auto& own) {
        const auto n = static_cast<std::size_t>(all.cols);
        const auto from = all.data.begin() + static_cast<std::ptrdiff_t>(first * n);
        return std::equal(own.data.begin(), own.data.end(), from,
                          [](double a, double b) { return a == b || (a != a && b != b); });
      };
      EXPECT_TRUE(same(together.out, alone.out)) << "request " << r;
      EXPECT_TRUE(same(together.lse, alone.lse)) << "request " << r;
    }
  }
}

// Whole and split items; requests without keys, and one without pages; also blocks of 128 M rows.
TEST_P(GqaEmulated, EachConventionOfLse) {
  for (const int rows : {1, 17}) {
    for (const int sms : {1, 6}) {
      SCOPED_TRACE(fmt::format("rows {} SMs {}", rows, sms));
      Bf16Scene s(dims(16, 8, 1), {{200, rows}, {0, 1}, {30, 1}, {170, 1}});
      for (int page = 0; page < 2; ++page) s.batch.entry(2, page) = PageId(-1);
      AttendArgs args = s.args;
      expect_each_convention(s.oracle().lse, 1e-6, 8.01 / 65536, [&](LseConvention convention) {
        args.lse_convention = convention;
        return attend(args, sms);
      });
    }
  }
}

// Causal rows, with and without a window or chunks, in blocks of 8 to 128 M rows; whole and split
// items.
TEST_P(GqaEmulated, A1MaskedKeyReachesNoRow) {
  struct Case {
    int group, rows, keys, window, sms;
    bool chunked = false;
  };
  for (const Case& c : {Case{4, 2, 130, 0, 2}, Case{7, 3, 70, 20, 1}, Case{4, 9, 200, 70, 3},
                        Case{5, 3, 210, 140, 2}, Case{4, 40, 150, 33, 2},
                        Case{4, 3, 98, 48, 1, true}, Case{4, 40, 150, 32, 2, true}}) {
    SCOPED_TRACE(fmt::format("group {} rows {} keys {} window {} SMs {}{}", c.group, c.rows, c.keys,
                             c.window, c.sms, c.chunked ? " chunked" : ""));
    Bf16Scene s(dims(16, c.group), {{c.keys, c.rows}, {65, 1}});
    s.args.problem.window = c.window;
    s.args.problem.chunked = c.chunked;
    check_nonfinite_keys(s, [&](const AttendArgs& args) { return attend(args, c.sms); });
  }
}

// Row maxes rise within an item, from M row to M row, and in the last tile. With the larger scale
// P of the row max before overflows.
TEST_P(GqaEmulated, ScoresGrow) {
  for (const float scale : {2.f, 40.f}) {
    for (const int rows : {2, 4, 12, 30}) {
      SCOPED_TRACE(fmt::format("scale {} rows {}", scale, rows));
      Bf16Scene s(dims(16, 4), {{300, rows}});
      s.args.problem.scale = scale;
      check(s, 1);
    }
  }
}

// attend() with a NaN in one element of a KV head of a key of request 0.
Outputs attend_with_nan(Bf16Scene& s, PartRole role, int position, int head, int dim) {
  const ConstPoolView pool = s.pool.view();
  const int page = s.dims.page, bytes = s.dims.kind == LayoutKind::gqa_fp8 ? 1 : 2;
  auto* at = const_cast<std::byte*>(pool.data) +
             s.batch.entry(0, position / page).value * pool.page_stride +
             pool.layout.offset_of(*pool.layout.find(role), page, position % page) +
             (head * (role == PartRole::key ? s.dims.dim : s.dims.v_dim) + dim) * bytes;
  const std::vector<std::byte> kept(at, at + bytes);
  std::memset(at, 0xff, kept.size());
  Outputs got = attend(s.args, 2, DType::f32);
  std::memcpy(at, kept.data(), kept.size());
  return got;
}

void expect_nan_in_dependents(const GqaDims& dims, int group) {
  constexpr int kHead = 1, kDim = 5;
  Bf16Scene s(dims, {{200, 1}, {70, 1}});
  const Outputs clean = attend(s.args, 2, DType::f32);
  const int v_dim = s.dims.v_dim;
  for (const int position : {37, 55, 120}) {
    for (const PartRole role : {PartRole::key, PartRole::value}) {
      SCOPED_TRACE(fmt::format("{} at {}", role == PartRole::key ? "key" : "value", position));
      const Outputs got = attend_with_nan(s, role, position, kHead, kDim);
      for (std::size_t i = 0; i < got.out.data.size(); ++i) {
        const auto head = static_cast<int>(i) / v_dim;  // of both rows
        const bool depends =
            head / group == kHead && (role == PartRole::key || static_cast<int>(i) % v_dim == kDim);
        EXPECT_EQ(std::isnan(got.out.data[i]), depends) << i;
        if (depends) continue;
        EXPECT_EQ(got.out.data[i], clean.out.data[i]) << i;
      }
    }
  }
}

// A NaN that all rows of an M block see is in what depends on it, and nowhere else.
TEST_P(GqaEmulated, ANanOfASeenKeyStays) {
  for (const int group : {4, 16, 40}) {
    SCOPED_TRACE(fmt::format("group {}", group));
    expect_nan_in_dependents(dims(16, group), group);
  }
}

// A NaN in a key that only the last row sees, in a tile that starts or ends what rows see, is in
// outputs of its own KV head in that row, and nowhere else.
TEST_P(GqaEmulated, ANanAtAnEdgeStaysInItsHead) {
  constexpr int kRows = 3;
  for (const auto& [group, window] : {std::pair{2, 0}, {2, 66}, {5, 0}, {5, 66}}) {
    Bf16Scene s(dims(16, group), {{150, kRows}, {70, 1}});
    s.args.problem.window = window;
    const Outputs clean = attend(s.args, 2, DType::f32);
    // With a window also a key that only the first row sees.
    for (const auto& [position, seer] : {std::pair{149, 2}, {150 - kRows + 1 - window, 0}}) {
      if (seer == 0 && window == 0) continue;
      for (const PartRole role : {PartRole::key, PartRole::value}) {
        for (int head = 0; head < kv_heads(); ++head) {
          SCOPED_TRACE(fmt::format("group {} window {} position {} {} of head {}", group, window,
                                   position, role == PartRole::key ? "key" : "value", head));
          const Outputs got = attend_with_nan(s, role, position, head, value_dim() - 3);
          const auto width = static_cast<std::size_t>(value_dim());
          for (std::size_t at = 0; at < got.out.data.size(); at += width) {
            const auto number = static_cast<int>(at / width);
            const int row = number / s.dims.heads, own = number % s.dims.heads / group;
            std::size_t nans = 0, same = 0;
            for (std::size_t i = at; i < at + width; ++i) {
              nans += std::isnan(got.out.data[i]) ? 1 : 0;
              same += got.out.data[i] == clean.out.data[i] ? 1 : 0;
            }
            if (row == seer && own == head) {
              EXPECT_GT(nans, 0U);
            } else {
              EXPECT_EQ(same, width);
            }
          }
        }
      }
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<GqaEmulated::ParamType>& test) {
  return fmt::format("{}_d{}", name(std::get<0>(test.param)), std::get<1>(test.param));
}
INSTANTIATE_TEST_SUITE_P(
    All, GqaEmulated,
    ::testing::Combine(::testing::Values(LayoutKind::gqa_bf16, LayoutKind::gqa_fp8),
                       ::testing::Values(64, 128, 192, 256, 512), ::testing::Values(2)),
    case_name);
// Heads that are no pairs (gqa_has_pairs()).
INSTANTIATE_TEST_SUITE_P(Odd, GqaEmulated,
                         ::testing::Combine(::testing::Values(LayoutKind::gqa_fp8),
                                            ::testing::Values(64), ::testing::Values(3)),
                         case_name);

// Latents: grouped queries of one KV head, with values in its keys.
class GqaLatentEmulated : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  latent_test::Requests edges() const { return {{70, 1}, {0, 1}, {1, 1}, {64, 1}, {300, 1}}; }
  CacheLayout layout() const {
    return CacheLayout(LayoutKind::mla_bf16, {.nope = GetParam().first, .rope = GetParam().second});
  }
  void check(latent_test::Scene& s, int sms, DType out = DType::bf16) {
    const Matrix<bf16> q = rounded(s.q);
    s.args.q = q.view();
    expect_oracle(attend(s.args, sms, out),
                  ref_test::run(ref_attend_latent, s.args, GetParam().first));
  }
};

// M blocks of 8 to 64 M rows; whole and split items.
TEST_P(GqaLatentEmulated, Decodes) {
  for (const int page : {16, 32, 64, 128}) {
    for (const int heads : {5, 32, 40}) {
      SCOPED_TRACE(fmt::format("page {} heads {}", page, heads));
      latent_test::Scene s(layout(), page, heads, edges());
      check(s, 3, page == 32 ? DType::f32 : DType::bf16);
    }
  }
}

// Also blocks of 128 M rows, some of which begin in the middle of a row.
TEST_P(GqaLatentEmulated, VerifiesAndExtends) {
  for (const int heads : {3, 40}) {
    for (const int rows : {2, 5, 23}) {
      SCOPED_TRACE(fmt::format("heads {} rows {}", heads, rows));
      latent_test::Scene s(layout(), 16, heads, {{90, rows}, {rows, rows}, {131, 1}});
      check(s, 2);
    }
  }
}

TEST_P(GqaLatentEmulated, HolesAreNoKeys) {
  for (const int rows : {1, 9}) {
    latent_test::Scene s(layout(), 16, 20, {{150, rows}, {40, 1}, {16, 1}, {70, 1}});
    s.batch.entry(0, 0) = PageId(-1);
    s.batch.entry(0, 4) = PageId(1 << 30);
    s.batch.entry(1, 2) = PageId(-5);
    s.batch.entry(2, 0) = PageId(-1);
    for (int page = 0; page < 4; ++page) s.batch.entry(3, page) = PageId(-1);  // a whole tile
    check(s, 2);
  }
}

class GqaListedEmulated : public GqaLatentEmulated {};

// Rows that select keys: lists with holes and slots beyond the pool, of fewer keys than a tile and
// of several tiles. Each row is a work item, in blocks of 8 to 128 M rows.
TEST_P(GqaListedEmulated, ReadsListedKeys) {
  for (const auto& [heads, width] :
       {std::pair{5, 40}, {20, 200}, {64, 64}, {70, 150}, {128, 300}}) {
    for (const int page : {1, 16, 48}) {
      SCOPED_TRACE(fmt::format("heads {} entries {} page {}", heads, width, page));
      latent_test::Scene s(layout(), page, heads, {{150, 2}, {1, 1}, {70, 3}});
      const latent_test::Ints list = s.random_list(width);
      s.by_index(list);
      check(s, 2, page == 16 ? DType::f32 : DType::bf16);
    }
  }
}

TEST_P(GqaListedEmulated, ReadsAsManyEntriesAsARowHas) {
  latent_test::Scene s(layout(), 16, 20, {{150, 4}, {70, 2}});
  const latent_test::Ints list = s.random_list(130), lengths = {0, 1, 64, 65, 130, 129};
  s.by_index(list);
  s.args.main.index_lengths = lengths;
  check(s, 3);
}

void expect_nan_where_listed(const CacheLayout& layout, int heads, int value_dim) {
  latent_test::Scene s(layout, 16, heads, {{150, 2}});
  latent_test::Ints list;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 70; ++j) {
      list.push_back(slot_of(s.batch.entry(0, (i + 2 * j) / 16), 16, (i + 2 * j) % 16).value);
    }
  }
  s.by_index(list);
  const ConstPoolView pool = s.pool.view();
  const std::int32_t slot = list[9];  // of row 0
  auto* row = const_cast<std::byte*>(pool.data) + slot / 16 * pool.page_stride +
              slot % 16 * pool.layout.bytes_per_token();
  std::memset(row, 0xff, static_cast<std::size_t>(pool.layout.bytes_per_token()));
  const Matrix<bf16> q = rounded(s.q);
  s.args.q = q.view();
  const Outputs got = attend(s.args, 2), want = ref_test::run(ref_attend_latent, s.args, value_dim);
  const std::size_t half = got.out.data.size() / 2;
  for (std::size_t i = 0; i < got.out.data.size(); ++i) {
    if (i < half) {
      EXPECT_TRUE(std::isnan(got.out.data[i])) << i;
    } else {
      EXPECT_NEAR(got.out.data[i], want.out.data[i], 0.02) << i;
    }
  }
}

// Keys that are not finite reach the rows that list them alone.
TEST_P(GqaListedEmulated, ListedKeysThatAreNotFinite) {
  for (const int heads : {20, 64}) {
    SCOPED_TRACE(fmt::format("heads {}", heads));
    expect_nan_where_listed(layout(), heads, GetParam().first);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GqaLatentEmulated,
                         ::testing::Values(std::pair{256, 64}, std::pair{256, 32},
                                           std::pair{128, 32}),
                         [](const auto& test) {
                           return fmt::format("nope{}_rope{}", test.param.first, test.param.second);
                         });

INSTANTIATE_TEST_SUITE_P(All, GqaListedEmulated, ::testing::Values(std::pair{128, 32}));

TEST(GqaWiden, IsExact) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const std::uint32_t other = (code * 37 + 11) % 256;
    const std::uint32_t codes = code | other << 8 | other << 16 | code << 24;
    const auto expect = [&](std::uint32_t words, std::uint32_t low, std::uint32_t high) {
      for (const auto& [bits, wanted] : {std::pair{words << 16, low}, {words >> 16 << 16, high}}) {
        const float value = to_f32(e4m3{static_cast<std::uint8_t>(wanted)});
        const float nan = (wanted & 0x80) != 0 ? -480.f : 480.f;
        EXPECT_EQ(bits_to_float(bits), std::isnan(value) ? nan : value) << wanted;
      }
    };
    expect(widen_pair<0, 1>(codes), code, other);
    expect(widen_pair<2, 3>(codes), other, code);
    expect(widen_pair<0, 2>(codes), code, other);
    expect(widen_pair<1, 3>(codes), other, code);
    const bool wild = (code & 0x7f) == 0x7f || (other & 0x7f) == 0x7f;
    EXPECT_EQ(has_nan(nan_bits(codes)), wild) << code;
  }
}

}  // namespace
}  // namespace lathe::cuda
