// Plans the Step of each segment and group, and makes the key of a recorded step.
#include <utility>

#include "attn/draft_rows.h"
#include "engine/runner/runner.h"

namespace lathe {

Result<void> Runner::add_steps() {
  for (std::size_t i = 0; i < groups(); ++i) {
    const std::size_t g = groups_[i];
    StepOptions options;
    options.main_pages = cache_->pools(g).pages();
    if (const PoolGroup* entries = cache_->entries(g)) options.compressed_pages = entries->pages();
    options.fixed_strides = replays_;
    if (state_of_[i]) options.state = cache_->state(g)->shape();
    auto step = Step::make(cache_->plan(g), options, bounds_[i]);
    if (!step) return step.error();
    steps_.push_back(std::move(*step));
  }
  return {};
}

// Turns parts into requests of a group's steps. A part that is not its item's last writes the state
// to the slot of its own last row, or, if there is none, to the item's last slot, where the next
// part reads it.
void Runner::make_requests(std::size_t i) {
  const std::size_t g = groups_[i];
  requests_.clear();
  state_lists_.clear();
  // Reserve: spans point into the lists.
  state_lists_.reserve(parts_.size());
  for (const RoutedRows& part : parts_) {
    const BatchItem& item = *part.of;
    StepRequest& request = requests_.emplace_back();
    request.pages = item.pages[g];
    request.cached = part.cached;
    request.rows = static_cast<std::int32_t>(part.tokens.size());
    if (entries_of_[i]) request.compressed_pages = item.entries[*entries_of_[i]];
    if (!state_of_[i]) continue;
    request.state_slots = item.states[*state_of_[i]];
    request.state_before = item.states_before[*state_of_[i]];
    const std::int64_t slot_tokens = cache_->state(g)->shape().page_size;
    const auto place = [&](std::int64_t position) {
      return static_cast<std::size_t>(position / slot_tokens);
    };
    const auto slot_of = [&](std::int64_t position) {
      const PageId own = request.state_slots[place(position)];
      return own.is_hole() ? request.state_slots.back() : own;
    };
    if (part.cut_before) request.state_before = slot_of(part.cached - 1);
    if (!part.cut_after) continue;
    const std::int64_t last = std::int64_t{part.cached} + request.rows - 1;
    const PageId left = slot_of(last);
    state_lists_.emplace_back(request.state_slots.begin(), request.state_slots.end());
    state_lists_.back()[place(last)] = left;
    request.state_slots = state_lists_.back();
  }
}

// Fills views_ from the parts.
Result<void> Runner::plan_steps() {
  while (steps_.size() < cuts_.size() * groups()) {
    if (auto ok = add_steps(); !ok) return ok;
  }
  views_.resize(cuts_.size() * groups());
  for (std::size_t g = 0; g < groups(); ++g) {
    make_requests(g);
    for (std::size_t s = 0; s < cuts_.size(); ++s) {
      const SegmentRange& c = cuts_[s];
      const std::size_t at = s * groups() + g;
      Step& step = steps_[at];
      if (replay_) {
        StepRequest filler;
        filler.padding = true;
        requests_.resize(c.last + static_cast<std::size_t>(fillers_), filler);
        for (std::int64_t i = 0; i < padding_; ++i) {
          requests_[c.last + static_cast<std::size_t>(i)].rows = 1;
        }
      }
      const std::size_t last = replay_ ? requests_.size() : c.last;
      const auto part = std::span(requests_).subspan(c.first, last - c.first);
      if (auto ok = step.plan({parts_[c.first].of->phase, part}); !ok) return ok;
      views_[at] = step.view();
      count_keys(views_[at], plan(g));
      if (replay_) even_out(views_[at]);
    }
  }
  return {};
}

// Gives the views to this rank's backend.
Result<void> Runner::prepare_steps(const Runner& leader, const OpsContext& ops) {
  while (prepared_.size() < leader.views_.size()) prepared_.emplace_back(ops.backend->memory());
  segments_.clear();
  for (std::size_t g = 0; g < groups(); ++g) {
    const std::int32_t layer = cache_->plan().groups[groups_[g]].group.layers.front();
    for (std::size_t s = 0; s < leader.cuts_.size(); ++s) {
      const std::size_t at = s * groups() + g;
      if (auto ok = ops.backend->prepare_step(ops, plan(g), cache_->keys(layer), leader.views_[at],
                                              prepared_[at]);
          !ok) {
        return ok;
      }
      segments_.push_back({&prepared_[at].view, leader.cuts_[s].first_row});
    }
  }
  return {};
}

void Runner::count_keys(const StepView& view, const Plan& plan) {
  if (view.phase == Phase::extend) return;
  const PrefixSavings& saved = view.prefix_savings;
  key_reads_.attended += plan.layers * view.total_context;
  key_reads_.shared += plan.layers * (saved.shared_keys - saved.read_keys);
}

// Rounds up the bounds from which kernels compute their launch sizes, so that many batches share a
// recording.
void Runner::even_out(StepView& view) const {
  view.max_context = padded_context(view.max_context);
  view.total_context = 0;
  if (view.phase == Phase::verify) view.max_rows = 1 + cache_->plan().draft_tokens();
  if (view.selecting_rows > 0) view.selecting_rows = view.rows;
}

// A recording's key: a hash of everything that a forward pass and its schedules read on the host,
// and of all addresses that may change.
std::uint64_t Runner::replay_key(const ForwardArgs& args) const {
  std::uint64_t key = 0;
  const auto add = [&](std::uint64_t v) {
    key = (key ^ v) * 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
  };
  const auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  add(static_cast<std::uint64_t>(pass_));
  add(static_cast<std::uint64_t>(args.logits.rows));
  add(address(args.logits.data));
  add(address(args.tokens.data()));
  add(address(args.logit_rows.data()));
  add(address(args.before_rows.data()));
  add(address(args.choice_rows.data()));
  for (const Segment& s : args.segments) {
    const StepView& v = *s.step;
    add(address(v.route));
    add(static_cast<std::uint64_t>(v.rows));
    add(static_cast<std::uint64_t>(v.requests));
    add(static_cast<std::uint64_t>(v.max_rows));
    add(static_cast<std::uint64_t>(v.max_context));
    add(static_cast<std::uint64_t>(v.selecting_rows));
    add(address(v.positions.data()));
    add(address(v.page_table.data));
    add(static_cast<std::uint64_t>(v.prefixes.size));
    add(address(v.prefixes.lists.data()));
  }
  return key;
}

}  // namespace lathe
