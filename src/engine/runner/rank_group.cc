#include "engine/runner/rank_group.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <utility>

#include "base/memory.h"
#include "base/thread_name.h"

namespace lathe {
namespace {

// Steps follow one another within microseconds, and waking a thread takes longer than that.
template <class Done>
bool spin_until(const Done& done) {
  constexpr auto kSpin = std::chrono::microseconds(50);
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

Error thrown(std::int32_t rank, std::string what) {
  return {ErrorCode::device, fmt::format("rank {}", rank), "a thread that works", std::move(what),
          ""};
}

}  // namespace

RankGroup::RankGroup(std::vector<std::unique_ptr<Communicator>> communicators)
    : communicators_(std::move(communicators)), results_(communicators_.size()) {
  for (std::int32_t r = 1; r < size(); ++r) threads_.emplace_back([this, r] { work(r); });
}

RankGroup::~RankGroup() {
  {
    const std::lock_guard lock(guard_);
    ends_ = true;
    jobs_.fetch_add(1);
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
}

Result<void> RankGroup::run_job(const Job& job) {
  {
    const std::lock_guard lock(guard_);
    job_ = job;
    running_.store(size() - 1);
    jobs_.fetch_add(1);
  }
  changed_.notify_all();
  call(0);
  const auto done = [this] { return running_.load() == 0; };
  if (!spin_until(done)) {
    std::unique_lock lock(guard_);
    changed_.wait(lock, done);
  }
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
  if (spin_until(posted)) return;
  std::unique_lock lock(guard_);
  changed_.wait(lock, posted);
}

void RankGroup::call(std::int32_t rank) {
  Result<void>& result = results_[static_cast<std::size_t>(rank)];
  Communicator& own = communicator(rank);
  try {
    result = job_.call(job_.body, rank);
    return;
  } catch (const OutOfMemory& e) {
    result =
        Error{ErrorCode::exhausted, fmt::format("rank {}: memory", rank), "enough", e.what(), ""};
    own.abort(result.error());
  } catch (const std::exception& e) {
    result = thrown(rank, e.what());
    own.abort(result.error());
  }
}

}  // namespace lathe
