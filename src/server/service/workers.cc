#include "server/service/workers.h"

#include <sys/resource.h>
#include <unistd.h>

#include "base/thread_name.h"

namespace lathe {
namespace {

constexpr int kNice = 5;  // a third of the others' share of a contended core

}  // namespace

Workers::Workers(int threads) {
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

void Workers::add(std::uint64_t client, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    auto& queue = jobs_[client];
    if (queue.empty()) turns_.push_back(client);
    queue.push_back(std::move(job));
  }
  wake_.notify_one();
}

void Workers::run() {
  name_thread("lathe-worker");
  // With few cores, tokenising a long prompt must not starve the serving thread. On Linux this sets
  // the priority of one thread.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !turns_.empty(); });
      if (stop_) return;
      const auto next = jobs_.find(turns_.front());
      turns_.pop_front();
      job = std::move(next->second.front());
      next->second.pop_front();
      if (next->second.empty()) {
        jobs_.erase(next);
      } else {
        turns_.push_back(next->first);
      }
    }
    job();
  }
}

}  // namespace lathe
