// Runs a call's tasks over decoded tiles, and folds the parts of work tiles.
#include "kernels/cpu/latent/latent_attend.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <new>
#include <numbers>

#include "kernels/cpu/common/attend_io.h"
#include "kernels/cpu/common/tasks.h"
#include "kernels/cpu/latent/latent_check.h"
#include "kernels/cpu/latent/latent_keys.h"
#include "kernels/cpu/latent/latent_math.h"
#include "kernels/cpu/latent/latent_plan.h"
#include "layout/codec/codec.h"
#include "step/schedule.h"

namespace lathe {
namespace {

// M rows per task that folds parts: enough to repay the cost of a task, but few enough that the M
// rows of one decode row keep several threads busy.
constexpr std::int64_t kJoinMRows = 4;

// A schedule in memory is a LatentPlan, then its lists from this byte on.
constexpr std::int64_t kPlanBytes = whole_lines(sizeof(LatentPlan));

// Hands out consecutive arrays of floats from a buffer.
struct Carver {
  float* at;
  float* take(std::int64_t floats) {
    float* p = at;
    at += floats;
    return p;
  }
  LatentState state(const LatentPlan& plan) {
    float* out = take(plan.m_rows * plan.out_stride);
    return {out, reinterpret_cast<SoftState*>(take(2 * latent_padded(plan.m_rows)))};
  }
};

void clear(const LatentState& s, std::int64_t m_rows, std::int64_t out_stride) {
  std::fill_n(s.out, m_rows * out_stride, 0.0f);
  std::fill_n(s.softmax, m_rows, SoftState());
}

// One call. A method writes only to its task's results and its worker's scratch, so tasks can run
// in parallel.
class Call {
 public:
  Call(const AttendArgs& args, const LatentPlan& plan, const std::byte* lists, std::byte* work)
      : args_(args),
        plan_(plan),
        work_(work),
        work_tiles_(plan.work_tile_list(lists)),
        tasks_(plan.task_list(lists)) {}

  void run() const {
    run_tasks(args_.execution, plan_.tasks, [&](std::int64_t i, int worker) { attend(i, worker); });
    if (!plan_.parts_apart) return;
    const std::int64_t groups = ceil_div(plan_.m_rows, kJoinMRows);
    run_tasks(args_.execution, plan_.work_tiles * groups, [&](std::int64_t i, int) {
      join_parts(work_tiles_[static_cast<std::size_t>(i / groups)], i % groups * kJoinMRows);
    });
  }

 private:
  // One worker's scratch.
  struct Worker {
    float* q;
    float* keys;
    float* scores;
    float* rescale;
    std::int32_t* visible;
    LatentState part;   // the current part, unless it is the first of a total
    LatentState total;  // the whole work tile, if one task runs all its parts
    LatentState state;  // the one of the two to which keys are added
    struct {
      std::int32_t part;
      std::int64_t end;
    } at;  // the current part
  };

  Worker worker(int number) const {
    std::byte* bytes = work_ + plan_.workers_at + number * plan_.worker_bytes;
    Carver carver{reinterpret_cast<float*>(bytes)};
    const std::int64_t small = latent_padded(plan_.m_rows);
    Worker w;
    w.q = carver.take(plan_.m_rows * plan_.width);
    w.keys = carver.take(kLatentTile * plan_.key_stride);
    w.scores = carver.take(plan_.m_rows * kLatentTile);
    w.rescale = carver.take(small);
    w.visible = reinterpret_cast<std::int32_t*>(carver.take(small));
    w.part = carver.state(plan_);
    w.total = carver.state(plan_);
    return w;
  }

  LatentState part_state(std::int64_t part) const {
    std::byte* bytes = work_ + part * plan_.state_floats() * 4;
    return Carver{reinterpret_cast<float*>(bytes)}.state(plan_);
  }

  void attend(std::int64_t number, int worker_number) const {
    const LatentTask& task = tasks_[static_cast<std::size_t>(number)];
    const LatentWorkTile& work_tile = work_tiles_[static_cast<std::size_t>(task.work_tile)];
    Worker w = worker(worker_number);
    pack_q(work_tile, w);
    if (task.part >= 0) {
      const LatentState part = part_state(work_tile.first_part + task.part);
      return add_parts(work_tile, task.part, task.part + 1, part, true, w);
    }
    const LatentState total = plan_.run == nullptr ? w.total : run_state(work_tile);
    add_parts(work_tile, 0, work_tile.parts, total, plan_.run == nullptr || plan_.run->first == 0,
              w);
    if (plan_.run == nullptr || plan_.run->last) write(work_tile, total);
  }

  // A work tile's M rows are contiguous: a work tile of several rows has all their heads.
  LatentState run_state(const LatentWorkTile& work_tile) const {
    const std::int64_t m_row = work_tile.row * args_.problem.heads + work_tile.head;
    return {plan_.run->out + m_row * plan_.out_stride, plan_.run->softmax + m_row};
  }

  // Folds the parts of kJoinMRows M rows of a work tile and writes their results.
  void join_parts(const LatentWorkTile& work_tile, std::int64_t first) const {
    const std::int64_t last = std::min(work_tile.m_rows(), first + kJoinMRows);
    if (work_tile.parts == 1 || first >= last) return;
    const LatentState total = part_state(work_tile.first_part);
    const LatentState into = from_m_row(total, first);
    for (std::int32_t part = 1; part < work_tile.parts; ++part) {
      latent_fold(from_m_row(part_state(work_tile.first_part + part), first), into, last - first,
                  plan_.out_stride);
    }
    write(work_tile, total, first, last);
  }

  LatentState from_m_row(const LatentState& state, std::int64_t m_row) const {
    return {state.out + m_row * plan_.out_stride, state.softmax + m_row};
  }

  void pack_q(const LatentWorkTile& work_tile, const Worker& w) const {
    const std::int64_t dim = args_.problem.qk_dim();
    const auto scale = static_cast<float>(double{args_.problem.scale} * double{args_.q_scale} *
                                          std::numbers::log2e);
    float* to = w.q;
    for (std::int32_t r = 0; r < work_tile.rows; ++r) {
      for (std::int32_t h = work_tile.head; h < work_tile.head + work_tile.heads;
           ++h, to += plan_.width) {
        load_row(args_.q, work_tile.row + r, h * dim, dim, scale, to);
        std::fill(to + dim, to + plan_.width, 0.0f);
      }
    }
    if (dim == plan_.width) return;
    for (std::int64_t k = 0; k < kLatentTile; ++k) {
      std::fill(w.keys + k * plan_.key_stride + dim, w.keys + k * plan_.key_stride + plan_.width,
                0.0f);
    }
  }

  // Adds the keys of parts first .. last - 1 to `total`. If that is empty, the first part
  // accumulates in it directly and needs no state of its own.
  void add_parts(const LatentWorkTile& work_tile, std::int32_t first, std::int32_t last,
                 const LatentState& total, bool empty, Worker& w) const {
    w.at = {first, plan_.part_begin(first + 1)};
    w.state = empty ? total : w.part;
    clear(w.state, work_tile.m_rows(), plan_.out_stride);
    const std::int64_t begin = plan_.part_begin(first);
    const std::int64_t end = std::min(work_tile.keys, plan_.part_begin(last));
    shares_keys(args_) ? add_positions(work_tile, begin, end, total, w)
                       : add_row(work_tile, begin, end, total, w);
    fold_part(work_tile, total, w);
  }

  void fold_part(const LatentWorkTile& work_tile, const LatentState& total, const Worker& w) const {
    if (w.state.out != total.out) latent_fold(w.state, total, work_tile.m_rows(), plan_.out_stride);
  }

  // Called before the tile of key `key`; begins the next part if it starts there.
  void maybe_next_part(const LatentWorkTile& work_tile, std::int64_t key, const LatentState& total,
                       Worker& w) const {
    if (key < w.at.end) return;
    fold_part(work_tile, total, w);
    w.at = {w.at.part + 1, plan_.part_begin(w.at.part + 2)};
    w.state = w.part;
    clear(w.state, work_tile.m_rows(), plan_.out_stride);
  }

  // add_positions() and add_rows() know the next tile's keys and prefetch them during this tile.
  void add_positions(const LatentWorkTile& work_tile, std::int64_t begin, std::int64_t end,
                     const LatentState& total, Worker& w) const {
    PositionKeys tiles[2];
    tiles[0].fill(args_.main, work_tile.request, begin, end);
    int now = 0;
    for (std::int64_t first = begin; first < end; first += kLatentTile, now ^= 1) {
      maybe_next_part(work_tile, first, total, w);
      const PositionKeys& tile = tiles[now];
      PositionKeys& next = tiles[now ^ 1];
      next.fill(args_.main, work_tile.request, first + kLatentTile, end);
      std::int64_t m_row = 0;
      for (std::int32_t r = 0; r < work_tile.rows; ++r) {
        const std::int64_t limit =
            std::clamp<std::int64_t>(work_tile.position + r + 1 - first, 0, kLatentTile);
        std::fill_n(w.visible + m_row, work_tile.heads,
                    tile.before[static_cast<std::size_t>(limit)]);
        m_row += work_tile.heads;
      }
      add_tile(work_tile, tile.keys, next.keys, w);
    }
  }

  void add_row(const LatentWorkTile& work_tile, std::int64_t begin, std::int64_t end,
               const LatentState& total, Worker& w) const {
    RowKeys row(args_, work_tile.row, work_tile.request, work_tile.position);
    row.skip(begin);
    LatentKeys tiles[2];
    int now = 0;
    row.fill(tiles[0], std::min(end - begin, kLatentTile));
    for (std::int64_t first = begin; tiles[now].count > 0; now ^= 1) {
      maybe_next_part(work_tile, first, total, w);
      first += tiles[now].count;
      row.fill(tiles[now ^ 1], std::min(end - first, kLatentTile));
      std::fill_n(w.visible, work_tile.heads, static_cast<std::int32_t>(tiles[now].count));
      add_tile(work_tile, tiles[now], tiles[now ^ 1], w);
    }
  }

  // Finds the first byte of each key's record, and returns the record's length. Ignores a layout's
  // second plane, which is small.
  std::int64_t find_records(const KeySource& source, std::span<const Slot> index,
                            const std::uint8_t** to) const {
    if (index.empty()) return 0;
    const auto put = [&to](const std::byte* record) {
      *to++ = reinterpret_cast<const std::uint8_t*>(record);
    };
    if (!source.pool) {
      for (const Slot i : index) put(source.compact.row(i.value));
      return bytes_of(source.compact.dtype, source.compact.cols);
    }
    const Part& first = source.pool->layout.part(0);
    for (const Slot i : index) put(source.pool->at(first, i));
    return source.pool->layout.plane_bytes(0);
  }

  void add_tile(const LatentWorkTile& work_tile, const LatentKeys& keys, const LatentKeys& next,
                const Worker& w) const {
    if (keys.count == 0) return;
    decode(args_.main, keys.main(), w.keys);
    decode(args_.extra, keys.extra(), w.keys + keys.from_main * plan_.key_stride);
    std::array<const std::uint8_t*, kLatentTile> records{};
    const std::int64_t main_bytes = find_records(args_.main, next.main(), records.data());
    const std::int64_t extra_bytes =
        find_records(args_.extra, next.extra(), records.data() + next.from_main);
    const std::int64_t record_bytes = std::max(main_bytes, extra_bytes);
    LinesAhead ahead;
    ahead.add(records.data(), 0, static_cast<std::size_t>(record_bytes));
    LatentTileJob job;
    job.q = w.q;
    job.keys = w.keys;
    job.width = plan_.width;
    job.key_stride = plan_.key_stride;
    job.m_rows = work_tile.m_rows();
    job.visible = w.visible;
    job.scores = w.scores;
    job.rescale = w.rescale;
    job.state = w.state;
    job.out_stride = plan_.out_stride;
    job.ahead = &ahead;
    job.ahead_lines = next.count * ((record_bytes + 63) / 64);
    latent_add_tile(job);
  }

  void decode(const KeySource& source, std::span<const Slot> index, float* to) const {
    if (index.empty()) return;
    const std::int64_t dim = args_.problem.qk_dim();
    if (source.pool) {
      const MutableRowsView rows{reinterpret_cast<std::byte*>(to), DType::f32, std::ssize(index),
                                 dim, plan_.key_stride};
      const Result<void> done = gather_decode(*source.pool, index, rows, {source.key_scale, 1});
      LATHE_CHECK(done.ok(), "decoding checked arguments");
      return;
    }
    for (const Slot i : index) {
      load_row(source.compact, i.value, 0, dim, 1, to);
      to += plan_.key_stride;
    }
  }

  void write(const LatentWorkTile& work_tile, const LatentState& state) const {
    write(work_tile, state, 0, work_tile.m_rows());
  }

  // Writes the results of M rows first .. last - 1 of a work tile.
  void write(const LatentWorkTile& work_tile, const LatentState& state, std::int64_t first,
             std::int64_t last) const {
    const std::int64_t v_dim = args_.problem.v_dim();
    for (std::int64_t m_row = first; m_row < last; ++m_row) {
      const std::int64_t row = work_tile.row + m_row / work_tile.heads;
      const std::int64_t h = work_tile.head + m_row % work_tile.heads;
      const float* sink = args_.problem.sink ? &args_.sink[static_cast<std::size_t>(h)] : nullptr;
      const SoftState& softmax = state.softmax[m_row];
      const Finished done = finish_softmax(softmax.max, softmax.sum, sink, 1);
      store_output(args_.out, row, h * v_dim, v_dim, state.out + m_row * plan_.out_stride, done);
      store_lse(args_, row, h, done);
    }
  }

  const AttendArgs& args_;
  const LatentPlan& plan_;
  std::byte* work_;
  std::span<const LatentWorkTile> work_tiles_;
  std::span<const LatentTask> tasks_;
};

}  // namespace

void latent_attend_run(const AttendArgs& args, const LatentRun* run) {
  const LatentPlan plan(args, run);
  Scratch own;
  Scratch& scratch = args.execution.scratch == nullptr ? own : *args.execution.scratch;
  std::byte* lists = scratch.take(plan.list_bytes + plan.work_bytes);
  plan.fill(args, lists);
  Call(args, plan, lists, lists + plan.list_bytes).run();
}

Result<void> cpu_prepare_latent(const AttendArgs& args, Schedule& schedule) {
  const LatentPlan plan(args);
  std::byte* bytes = schedule.take_host(kPlanBytes + plan.list_bytes);
  new (bytes) LatentPlan(plan);
  plan.fill(args, bytes + kPlanBytes);
  return {};
}

Result<void> cpu_attend_latent(const AttendArgs& args) {
  if (Result<void> ok = check_cpu_latent_args(args); !ok) return ok;
  if (args.q.rows == 0) return {};
  if (args.schedule == nullptr) {
    latent_attend_run(args, nullptr);
    return {};
  }
  const std::byte* prepared = args.schedule->host();
  const auto& plan = *reinterpret_cast<const LatentPlan*>(prepared);
  Scratch own;
  Scratch& scratch = args.execution.scratch == nullptr ? own : *args.execution.scratch;
  Call(args, plan, prepared + kPlanBytes, scratch.take(plan.work_bytes)).run();
  return {};
}

}  // namespace lathe
