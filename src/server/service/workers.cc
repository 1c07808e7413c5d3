#include "server/service/workers.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "base/thread_name.h"

namespace lathe {
namespace {

constexpr int kNice = 5;  // a third of the others' share of a contended core

}  // namespace

Workers::Workers(int threads) {
  const std::lock_guard lock(mutex_);  // they count the threads
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Workers::add(std::uint64_t client, bool long_one, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    const Key key(client, long_one);
    jobs_[key].push_back(std::move(job));
    // Without memory for the turn the key's next job brings it.
    if (std::ranges::find(turns_, key) == turns_.end()) turns_.push_back(key);
  }
  wake_.notify_one();
}

// The next key whose job may run.
std::deque<Workers::Key>::iterator Workers::find_turn() {
  const bool full = long_ones_ > 0 && long_ones_ + 1 >= threads_.size();
  return std::ranges::find_if(turns_, [&](const Key& key) { return !full || !key.second; });
}

void Workers::run() {
  name_thread("lathe-worker");
  // With few cores, tokenising a long prompt must not starve the serving thread. On Linux this sets
  // the priority of one thread.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
  for (;;) {
    std::function<void()> job;
    bool long_one = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || find_turn() != turns_.end(); });
      if (stop_) return;
      const auto turn = find_turn();
      const auto next = jobs_.find(*turn);
      long_one = next->first.second;
      long_ones_ += long_one ? 1 : 0;
      job = std::move(next->second.front());
      next->second.pop_front();
      std::rotate(turn, turn + 1, turns_.end());  // allocates nothing
      if (next->second.empty()) {
        jobs_.erase(next);
        turns_.pop_back();
      }
    }
    job();
    if (!long_one) continue;
    {
      const std::lock_guard lock(mutex_);
      --long_ones_;
    }
    wake_.notify_one();
  }
}

}  // namespace lathe
