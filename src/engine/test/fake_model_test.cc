#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "engine/test/fake_model_test_util.h"
#include "kernels/compress.h"
#include "kernels/host_communicator.h"
#include "kernels/ref/sampling.h"
#include "kernels/test/faulty_communicator_test_util.h"
#include "layout/codec/codec.h"

namespace lathe {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

std::uint64_t add_key(std::uint64_t hash, std::int32_t token) {
  return mix(hash ^ mix(static_cast<std::uint64_t>(token)));
}

void logits_of(std::uint64_t hash, std::span<float> out) {
  for (std::size_t t = 0; t < out.size(); ++t) {
    out[t] = static_cast<float>(mix(hash + t) >> 40) * 0x1p-21f - 4;
  }
}

// A key's first elements; all are whole numbers below 256, exact in bf16.
constexpr std::size_t kMarks = 4;
std::array<float, kMarks> marks(std::int32_t token, std::int32_t position, std::int32_t layer) {
  return {static_cast<float>(token), static_cast<float>(position % 251),
          static_cast<float>(position / 251), static_cast<float>(layer + 1)};
}

MutableRowsView rows_of(std::vector<float>& data, std::int64_t rows, std::int64_t cols) {
  data.assign(static_cast<std::size_t>(rows * cols), 0.0f);
  return {reinterpret_cast<std::byte*>(data.data()), DType::f32, rows, cols, cols};
}

RowsView reading(const MutableRowsView& v) {
  return {v.data, v.dtype, v.rows, v.cols, v.row_stride};
}

AttentionProblem fake_problem(LayoutKind layout) {
  AttentionProblem p =
      layout == LayoutKind::gqa_bf16 ? gqa_problem(1, 1, 16) : deepseek_v3_problem(1);
  if (layout != LayoutKind::gqa_bf16) p.nope = p.rope = 16;
  return p;
}

}  // namespace

std::vector<float> fake_logits(std::span<const std::int32_t> tokens, std::int32_t vocab) {
  std::uint64_t hash = 1;
  bool nan = false;
  for (std::int32_t t : tokens) {
    hash = add_key(hash, t);
    nan |= t == FakeModel::kNanToken;
  }
  std::vector<float> out(static_cast<std::size_t>(vocab));
  logits_of(hash, out);
  if (nan) out[3] = std::numeric_limits<float>::quiet_NaN();
  return out;
}

FakeModel::FakeModel(const AttentionProblem& problem) : FakeModel({{"all", problem, {}, {0, 1}}}) {}

FakeModel::FakeModel(std::vector<LayerGroupConfig> groups) {
  config_.architecture = "Fake";
  config_.vocab = kVocab;
  config_.hidden = 2;
  config_.layers = kLayers;
  config_.max_context = 1000;
  config_.groups = std::move(groups);
  config_.eos = {kEos, 100000};  // the second is outside the vocabulary
}

void FakeModel::write_keys(const ForwardArgs& args, std::size_t group,
                           const Segment& segment) const {
  const StepView& v = *segment.step;
  for (const std::int32_t layer : config_.groups[group].layers) {
    const PoolView pool = args.cache->main(layer);
    std::vector<float> data;
    const MutableRowsView rows = rows_of(data, v.rows, pool.layout.row_elems());
    for (std::int64_t r = 0; r < v.rows; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const auto token = args.tokens[static_cast<std::size_t>(segment.first_row) + i];
      const auto m = marks(token, v.positions[i].value, layer);
      std::copy(m.begin(), m.end(), data.begin() + r * rows.cols);
    }
    LATHE_CHECK(encode_rows(reading(rows), v.out_slots, pool), "cannot write keys");
  }
}

// The tokens of the row's request up to the row, within the group's window. A key at a wrong
// position or one that differs between layers reads as token -1.
void FakeModel::read_tokens(const ForwardArgs& args, std::size_t group, const Segment& segment,
                            std::int64_t row, std::vector<std::int32_t>& tokens) const {
  const StepView& v = *segment.step;
  const auto r = static_cast<std::size_t>(row);
  const std::int32_t page_size = args.cache->page_size(group);
  const std::int32_t window = config_.groups[group].problem.window;
  const std::int32_t begin = window > 0 ? std::max(0, v.row_lens[r] - window) : 0;
  std::vector<Slot> slots;
  for (std::int32_t j = begin; j < v.row_lens[r]; ++j) {
    slots.push_back(
        slot_of(v.page_table.at(v.row_request[r], j / page_size), page_size, j % page_size));
  }
  const bool first_group = tokens.empty();
  tokens.resize(static_cast<std::size_t>(v.row_lens[r]));
  for (const std::int32_t layer : config_.groups[group].layers) {
    const ConstPoolView source = args.cache->main(layer);
    std::vector<float> data;
    const MutableRowsView rows = rows_of(data, std::ssize(slots), source.layout.row_elems());
    LATHE_CHECK(gather_decode(source, slots, rows), "cannot read keys");
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::size_t j = i + static_cast<std::size_t>(begin);
      const float* key = data.data() + static_cast<std::int64_t>(i) * rows.cols;
      const bool number = key[0] >= 0 && key[0] < kVocab;
      const std::int32_t token = number ? static_cast<std::int32_t>(key[0]) : -1;
      const auto m = marks(token, static_cast<std::int32_t>(j), layer);
      if (first_group && layer == config_.groups[group].layers.front()) tokens[j] = token;
      if (!std::equal(m.begin(), m.end(), key) || tokens[j] != token) tokens[j] = -1;
    }
  }
}

// The state after every row of the segment: a hash of all tokens up to the row, read from and
// written to the slots of the StepView. Empty for a group without states.
std::vector<std::uint64_t> FakeModel::run_states(const ForwardArgs& args, std::size_t group,
                                                 const Segment& segment) const {
  StatePool* pool = args.cache->state(group);
  if (pool == nullptr) return {};
  const StepView& v = *segment.step;
  std::vector<std::uint64_t> out;
  for (std::int64_t r = 0; r < v.requests; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const PageId before = v.state_before[at];
    std::uint64_t hash = 1;
    const StateView states = pool->view(0);
    const std::int64_t cached = v.kv_lens[at] - (v.q_indptr[at + 1] - v.q_indptr[at]);
    if (!before.is_hole()) std::memcpy(&hash, states.at(before, cached - 1), sizeof hash);
    for (std::int32_t t = v.q_indptr[at]; t < v.q_indptr[at + 1]; ++t) {
      const auto row = static_cast<std::size_t>(t);
      hash = add_key(hash, args.tokens[static_cast<std::size_t>(segment.first_row) + row]);
      out.push_back(hash);
      const std::int32_t position = v.positions[row].value;
      const bool ends = leaves_state(v, states, position, v.kv_lens[at]);
      const PageId slot = v.state_table.at(r, position / v.state_tokens);
      if (ends && !slot.is_hole()) std::memcpy(states.at(slot, position), &hash, sizeof hash);
    }
  }
  return out;
}

Result<ForwardResult> FakeModel::forward(const OpsContext& ops, const ForwardArgs& args) const {
  const std::int64_t rank = ops.communicator == nullptr ? 0 : ops.communicator->rank();
  const std::int64_t ranks = ops.communicator == nullptr ? 1 : ops.communicator->size();
  const Error failure{ErrorCode::unsupported, "forward", "a step that works", "a test's choice",
                      ""};
  if (std::exchange(fail_next, false)) return failure;
  ++forwards;
  const std::size_t groups = config_.groups.size();
  segments = std::ssize(args.segments_of(0, groups));
  step_rows = std::ssize(args.tokens);
  for (std::size_t g = 0; g < groups; ++g) {
    std::int64_t rows = 0;
    for (const Segment& s : args.segments_of(g, groups)) {
      LATHE_CHECK(s.first_row == rows, "segments cover all rows in order");
      rows += s.step->rows;
    }
    LATHE_CHECK(rows == std::ssize(args.tokens), "segments cover all rows");
  }
  LATHE_CHECK(std::is_sorted(args.logit_rows.begin(), args.logit_rows.end()), "ascending rows");
  if (late == nullptr) {
    run(args, rank, ranks);
  } else {
    // A copy: the runner may plan the next step in the same segments before this one runs.
    std::vector<Segment> own(args.segments.begin(), args.segments.end());
    std::vector<StepView> steps;
    for (const Segment& s : own) steps.push_back(*s.step);
    late->later([this, rank, ranks, args = args, own, steps]() mutable -> Result<void> {
      for (std::size_t i = 0; i < own.size(); ++i) own[i].step = &steps[i];
      args.segments = own;
      for (std::size_t g = 0; g < config_.groups.size(); ++g) {
        for (const Segment& s : args.segments_of(g, config_.groups.size())) {
          for (const Slot slot : s.step->out_slots) {
            if (slot.value < 0 || rank > 0) continue;  // the first rank has the ledger
            const PageId page(slot.value / args.cache->page_size(g));
            LATHE_CHECK(args.cache->ledger(g).owners(page) > 0, "a page without an owner");
          }
        }
      }
      run(args, rank, ranks);
      return {};
    });
  }
  if (std::exchange(fail_late, false)) return failure;
  ForwardResult result;
  for (std::int64_t row = 0; args.find_non_finite && row < std::ssize(args.tokens); ++row) {
    if (args.tokens[static_cast<std::size_t>(row)] == kNanToken) {
      result.non_finite.push_back({row, 1});
    }
  }
  return result;
}

void FakeModel::run(const ForwardArgs& args, std::int64_t rank, std::int64_t ranks) const {
  const std::size_t groups = config_.groups.size();
  const std::span<const Segment> first = args.segments_of(0, groups);
  std::vector<std::vector<std::uint64_t>> states;  // [groups * segments][rows]
  for (std::size_t g = 0; g < groups; ++g) {
    for (const Segment& s : args.segments_of(g, groups)) {
      write_keys(args, g, s);
      states.push_back(run_states(args, g, s));
    }
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    for (std::int64_t r = 0; r < first[i].step->rows; ++r) {
      const std::int64_t row = first[i].first_row + r;
      if (args.hidden.rows > 0) {
        auto* hidden = reinterpret_cast<float*>(args.hidden.row(row));
        hidden[0] = static_cast<float>(args.tokens[static_cast<std::size_t>(row)]);
        hidden[1] = static_cast<float>(first[i].step->positions[static_cast<std::size_t>(r)].value);
      }
      if (next == args.logit_rows.size() || args.logit_rows[next] != row) continue;
      std::vector<std::int32_t> tokens;
      for (std::size_t g = 0; g < groups; ++g) {
        read_tokens(args, g, args.segments_of(g, groups)[i], r, tokens);
      }
      for (std::size_t g = 0; g < groups; ++g) {
        const auto& hashes = states[g * first.size() + i];
        std::uint64_t hash = 1;
        for (const std::int32_t t : tokens) hash = add_key(hash, t);
        if (!hashes.empty() && hashes[static_cast<std::size_t>(r)] != hash) tokens[0] = -1;
      }
      const auto place = static_cast<std::int64_t>(next++);
      if (place % ranks != rank) continue;
      const auto logits = fake_logits(tokens, kVocab);
      auto* out = reinterpret_cast<float*>(args.logits.row(place / ranks));
      std::copy(logits.begin(), logits.end(), out);
    }
  }
  LATHE_CHECK(next == args.logit_rows.size(), "a logit row outside the batch");
}

namespace {

Plan fake_plan(const AttentionProblem& problem, std::int32_t layers, std::int32_t page_size,
               const FakeOptions& o) {
  Plan plan;
  plan.problem = problem;
  plan.caches.push_back({CacheRole::main, *layout_for(problem, o.layout), page_size, 1});
  for (Phase phase : enum_values<Phase>()) {
    Route route;
    route.kernel = name(phase);
    if (phase == Phase::extend && o.compact_extend) route.unit = KeyUnit::ragged_row;
    plan.phase(phase).phase = phase;
    if (phase == Phase::extend && o.short_context > 0) {
      Route near = route;
      near.kernel = "near";
      near.max_context = o.short_context;
      plan.phase(phase).routes.push_back(near);
    }
    if (phase == Phase::extend && o.least_rows > 0) {
      Route many = route;
      many.kernel = "many";
      many.min_rows = o.least_rows;
      plan.phase(phase).routes.push_back(many);
    }
    plan.phase(phase).routes.push_back(route);
  }
  plan.layers = layers;
  plan.max_rows = o.max_rows;
  plan.max_requests = o.max_requests;
  plan.draft_tokens = o.draft_tokens;
  plan.context_length = o.context_length;
  if (o.compact_extend) {
    // Has room for the keys of one request of the longest context.
    AdapterUse adapter;
    adapter.out_bytes = 2 * plan.main().layout.row_elems();
    for (Route& route : plan.phase(Phase::extend).routes) route.adapter = adapter;
    plan.budgets.push_back({BudgetKind::gather, o.context_length * adapter.out_bytes, 0});
  }
  return plan;
}

}  // namespace

FakeSetup::FakeSetup(const FakeOptions& o) {
  const AttentionProblem problem = fake_problem(o.layout);
  std::vector<LayerGroupConfig> groups{{"all", problem, {}, {0, 1}}};
  std::vector<std::int32_t> page_sizes{o.page_size};
  std::vector<PoolSize> sizes{{.budget_bytes = 0, .pages = o.pages}};
  if (o.window > 0) {
    groups[0].layers = {0};
    groups.push_back({"window", gqa_problem(1, 1, 16), {}, {1}});
    groups[1].problem.window = o.window;
    page_sizes.push_back(o.window_page_size);
    sizes.push_back({.budget_bytes = 0, .pages = o.window_pages});
  }
  std::vector<GroupPlan> plans;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    FakeOptions own = o;
    if (g == 1) own.layout = LayoutKind::gqa_bf16;
    const LayerGroupConfig& group = groups[g];
    const auto layers = static_cast<std::int32_t>(group.layers.size());
    plans.push_back({{group.name, group.problem, group.layers, 0},
                     fake_plan(group.problem, layers, page_sizes[g], own)});
  }
  if (o.state) plans.back().group.state_bytes = sizeof(std::uint64_t);
  plan = join_groups(std::move(plans));
  auto made = KvCache::create(plan, sizes);
  LATHE_CHECK(made, made ? "" : made.error().message());
  cache.emplace(std::move(*made));
  cache->poison_free();
  model.emplace(std::move(groups));
  if (o.late) {
    backend = std::make_unique<LateBackend>(Device::cpu, o.overlaps);
    model->late = late = static_cast<LateBackend*>(backend.get());
  } else {
    backend = std::move(*make_backend(Device::cpu));
  }
  if (o.ranks > 1) add_ranks(o, sizes);
}

void FakeSetup::add_ranks(const FakeOptions& o, std::span<const PoolSize> sizes) {
  std::vector<std::unique_ptr<Communicator>> all;
  for (auto& c : make_host_communicators(o.ranks)) {
    Faults faults{.seed = static_cast<std::uint64_t>(c->rank()), .most_delay = o.most_delay};
    if (c->rank() == o.ranks - 1) faults.fail_agree = o.fail_agree;
    all.push_back(std::make_unique<FaultyCommunicator>(std::move(c), faults));
  }
  rank_group = std::make_unique<RankGroup>(std::move(all));
  const auto own = [&](std::int32_t r, Backend& of, std::unique_ptr<Communicator>& holder) {
    Communicator& direct = rank_group->communicator(r);
    if (!o.late) return &direct;
    holder = std::make_unique<LateCommunicator>(static_cast<LateBackend&>(of), direct);
    return holder.get();
  };
  communicator = own(0, *backend, communicator_);
  other_ranks.group = rank_group.get();
  for (std::int32_t r = 1; r < o.ranks; ++r) {
    FakeRank& rank = *others.emplace_back(std::make_unique<FakeRank>());
    rank.cache.emplace(*KvCache::create(plan, sizes));
    rank.model.emplace(model->config().groups);
    if (o.late) {
      rank.backend = std::make_unique<LateBackend>(Device::cpu, o.overlaps);
      rank.model->late = static_cast<LateBackend*>(rank.backend.get());
    } else {
      rank.backend = std::move(*make_backend(Device::cpu));
    }
    OpsContext of;
    of.backend = rank.backend.get();
    of.tensors = of.control = &rank.arena;
    of.communicator = own(r, *rank.backend, rank.communicator);
    other_ranks.models.push_back({&*rank.model, &*rank.cache, of});
  }
}

Engine FakeSetup::engine(const EngineOptions& options) {
  EngineOptions all = options;
  if (rank_group) all.ranks = &other_ranks;
  auto made = Engine::create(*model, *cache, all, ops());
  LATHE_CHECK(made, made ? "" : made.error().message());
  return std::move(*made);
}

Answer expected_answer(const Request& request, std::int64_t capacity, std::uint64_t seed) {
  const SamplingParams& p = request.sampling;
  std::vector<std::int32_t> stops = p.stop_token_ids;
  if (!p.ignore_eos) stops.push_back(FakeModel::kEos);
  std::optional<SampledToken> sampled;
  std::vector<std::int32_t> tokens = request.prompt;
  Answer answer;
  const std::int64_t limit =
      p.max_tokens.value_or(static_cast<std::int32_t>(capacity - std::ssize(request.prompt)));
  while (std::ssize(answer.tokens) < limit) {
    const auto logits = fake_logits(tokens, FakeModel::kVocab);
    SampleArgs args{logits, &p, request.prompt, answer.tokens, {}, p.seed.value_or(seed)};
    if (std::ssize(answer.tokens) < p.min_tokens) args.ruled_out = stops;
    ref_sample(std::span(&args, 1), std::span(&sampled, 1));
    if (!sampled) {
      answer.reason = FinishReason::error;
      return answer;
    }
    answer.tokens.push_back(sampled->token);
    tokens.push_back(sampled->token);
    if (std::find(stops.begin(), stops.end(), sampled->token) != stops.end()) {
      answer.reason = FinishReason::stop;
      return answer;
    }
  }
  return answer;
}

namespace {

// Tests the fake itself: it follows the formula, and notices anything wrong in the cache.
TEST(FakeModel, ReadsItsContextThroughThePageTable) {
  for (LayoutKind layout : {LayoutKind::gqa_bf16, LayoutKind::mla_bf16}) {
    FakeOptions options;
    options.layout = layout;
    options.pages = 8;
    FakeSetup setup(options);
    auto runner = Runner::create(*setup.model, *setup.cache);
    ASSERT_TRUE(runner);
    const std::vector<std::int32_t> tokens{5, 9, 1, 30, 2, 11};
    const std::vector<std::vector<PageId>> pages{{PageId(6), PageId(1)}};
    BatchItem item;
    item.phase = Phase::extend;
    item.pages = pages;
    item.tokens = tokens;
    item.logits = 1;
    ASSERT_TRUE(run_batch(*runner, std::span(&item, 1), setup.ops(), false));
    const auto equal = [&](std::span<const std::int32_t> context) {
      const auto expected = fake_logits(context, FakeModel::kVocab);
      const auto got = *runner->logits(0, 0, setup.ops());
      return std::equal(got.begin(), got.end(), expected.begin());
    };
    EXPECT_TRUE(equal(tokens));

    const std::vector<std::int32_t> next{3};
    std::vector<std::int32_t> all = tokens;
    all.push_back(3);
    item.phase = Phase::decode;
    item.cached = 6;
    item.tokens = next;
    ASSERT_TRUE(run_batch(*runner, std::span(&item, 1), setup.ops(), false));
    EXPECT_TRUE(equal(all));
    for (const std::vector<PageId>& wrong :
         {std::vector{PageId(1), PageId(6)}, std::vector{PageId(6), PageId(2)}}) {
      item.pages = std::span(&wrong, 1);
      ASSERT_TRUE(run_batch(*runner, std::span(&item, 1), setup.ops(), false));
      EXPECT_FALSE(equal(all));
    }
    item.pages = pages;
    item.cached = 5;
    ASSERT_TRUE(run_batch(*runner, std::span(&item, 1), setup.ops(), false));
    EXPECT_FALSE(equal(all));
  }
}

}  // namespace
}  // namespace lathe
