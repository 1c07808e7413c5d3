#include "engine/runner/rank_group.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>

#include "base/memory.h"
#include "base/pause.h"
#include "base/print.h"
#include "base/thread_name.h"

namespace lathe {
namespace {

// Steps follow one another within microseconds, and waking a thread takes longer than that.
template <class Done>
bool spin_until(std::chrono::microseconds spin, const Done& done) {
  const auto end = std::chrono::steady_clock::now() + spin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause_thread();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

Error thrown(std::int32_t rank, std::string what) {
  return {ErrorCode::device, fmt::format("rank {}", rank), "a thread that works", std::move(what),
          ""};
}

std::string seconds_text(RankWatch::Time time) {
  return fmt::format("{:.0f} s", std::chrono::duration<double>(time).count());
}

void end_process(const Error& error) {
  print_err(fmt::format("lathe: {}\n", error.message()));
  std::_Exit(kRanksFailed);
}

}  // namespace

RankGroup::RankGroup(std::vector<std::unique_ptr<Communicator>> communicators,
                     RankGroupOptions options)
    : communicators_(std::move(communicators)),
      options_(std::move(options)),
      results_(communicators_.size()),
      finished_(communicators_.size()),
      busy_(std::make_unique<std::atomic<bool>[]>(communicators_.size())) {
  if (!options_.now)
    options_.now = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
  if (!options_.on_stuck) options_.on_stuck = end_process;
  for (std::int32_t r = 1; r < size(); ++r) threads_.emplace_back([this, r] { work(r); });
  threads_.emplace_back([this] { watch(); });
}

RankGroup::~RankGroup() {
  {
    const std::lock_guard lock(guard_);
    ends_ = true;
    jobs_.fetch_add(1);
  }
  changed_.notify_all();
  {
    const std::lock_guard lock(watch_guard_);
    watch_ends_ = true;
  }
  watch_wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

Result<void> RankGroup::run_job(const Job& job) {
  {
    const std::lock_guard lock(guard_);
    job_ = job;
    running_.store(size() - 1);
    for (std::int32_t r = 0; r < size(); ++r) busy_[static_cast<std::size_t>(r)] = true;
    jobs_.fetch_add(1);
  }
  changed_.notify_all();
  call(0);
  const auto done = [this] { return running_.load() == 0; };
  if (!spin_until(options_.spin, done)) {
    std::unique_lock lock(guard_);
    changed_.wait(lock, done);
  }
  return joined_results();
}

// The ranks' threads read job_ only after jobs_ has grown.
Result<void> RankGroup::run_job_here(const Job& job) {
  job_ = job;
  for (std::int32_t r = 0; r < size(); ++r) {
    busy_[static_cast<std::size_t>(r)] = true;
    call(r);
  }
  return joined_results();
}

Result<void> RankGroup::joined_results() {
  if (auto ok = communicators_[0]->status(); !ok) return ok;
  for (const Result<void>& result : results_) {
    if (!result) return result;
  }
  return {};
}

void RankGroup::work(std::int32_t rank) {
  name_thread(fmt::format("lathe-rank-{}", rank).c_str());
  for (std::uint64_t done = 0;; ++done) {
    wait_for_job(done);
    if (ends_) return;
    call(rank);
    if (running_.fetch_sub(1) > 1) continue;
    const std::lock_guard lock(guard_);
    changed_.notify_all();
  }
}

void RankGroup::wait_for_job(std::uint64_t done) {
  const auto posted = [&] { return jobs_.load() > done; };
  if (spin_until(options_.spin, posted)) return;
  while (awake_.load(std::memory_order_relaxed)) {
    if (spin_until(options_.spin, posted)) return;
    std::this_thread::yield();
  }
  std::unique_lock lock(guard_);
  changed_.wait(lock, posted);
}

void RankGroup::call(std::int32_t rank) {
  Result<void>& result = results_[static_cast<std::size_t>(rank)];
  Communicator& own = communicator(rank);
  try {
    result = job_.call(job_.body, rank);
  } catch (const OutOfMemory& e) {
    result =
        Error{ErrorCode::exhausted, fmt::format("rank {}: memory", rank), "enough", e.what(), ""};
    own.abort(result.error());
  } catch (const std::exception& e) {
    result = thrown(rank, e.what());
    own.abort(result.error());
  }
  busy_[static_cast<std::size_t>(rank)] = false;
}

// A step that has ended before the next look costs nothing but this thread's waking.
void RankGroup::watch() {
  name_thread("lathe-watchdog");
  RankWatch watch(options_.limits);
  std::uint64_t before = 0;
  std::unique_lock lock(watch_guard_);
  while (!watch_ends_) {
    watch_wake_.wait_for(lock, options_.look_every);
    const std::uint64_t step = step_.load(std::memory_order_relaxed);
    if (std::exchange(before, step) != step || step == 0 || watch_ends_) continue;
    lock.unlock();
    look(watch, step);
    lock.lock();
  }
}

void RankGroup::look(RankWatch& watch, std::uint64_t step) {
  for (std::int32_t r = 0; r < size(); ++r) {
    const auto finished = communicator(r).finished();
    if (finished) {
      finished_[static_cast<std::size_t>(r)] = *finished;
      continue;
    }
    Error error = finished.error();
    error.field = fmt::format("{}: {}", communicator(r).name(), error.field);
    communicator(r).abort(error);
  }
  const bool aborted = !communicator(0).status();
  switch (watch.look(options_.now(), step, finished_, aborted)) {
    case RankWatch::Verdict::fine:
      return;
    case RankWatch::Verdict::stopped: {
      std::string at;
      for (std::int32_t r = 0; r < size(); ++r) {
        at += fmt::format("{}{} after exchange {}", r > 0 ? ", " : "", communicator(r).name(),
                          finished_[static_cast<std::size_t>(r)]);
      }
      const bool first = step <= options_.limits.first_steps;
      return communicator(0).abort(
          {ErrorCode::device, fmt::format("step {}", step),
           fmt::format("an exchange in {}",
                       seconds_text(first ? options_.limits.first : options_.limits.exchange)),
           at, "a rank's thread or GPU has stopped"});
    }
    case RankWatch::Verdict::stuck:
      return give_up(step);
  }
}

void RankGroup::give_up(std::uint64_t step) {
  std::string busy;
  for (std::int32_t r = 0; r < size(); ++r) {
    if (!busy_[static_cast<std::size_t>(r)]) continue;
    busy += fmt::format("{}{}", busy.empty() ? "" : ", ", communicator(r).name());
  }
  if (busy.empty()) return;  // the step has just ended
  const Result<void> why = communicator(0).status();
  Error error = why ? thrown(0, "") : why.error();
  error.offered += fmt::format("; {} in step {} did not stop within {}", busy, step,
                               seconds_text(options_.limits.leave));
  options_.on_stuck(error);
}

}  // namespace lathe
