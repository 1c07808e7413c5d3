#include "engine/engine_thread.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/thread_name.h"

namespace lathe {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

EngineThread::EngineThread(Engine& engine, std::function<void(EngineNews&)> on_news)
    : engine_(&engine), on_news_(std::move(on_news)), thread_([this] { run(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    inbox_.stop = true;
  }
  wake_.notify_one();
  thread_.join();
}

void EngineThread::submit(std::vector<Submission> requests) {
  {
    const std::lock_guard lock(mutex_);
    std::move(requests.begin(), requests.end(), std::back_inserter(inbox_.submit));
  }
  wake_.notify_one();
}

void EngineThread::cancel(std::vector<Ticket> tickets, FinishReason reason) {
  {
    const std::lock_guard lock(mutex_);
    for (Ticket t : tickets) inbox_.cancel.push_back({t, reason});
  }
  wake_.notify_one();
}

void EngineThread::flush_prefix_cache(std::function<void(EngineStats)> done) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.flush.push_back(std::move(done));
  }
  wake_.notify_one();
}

std::chrono::nanoseconds EngineThread::stuck_for() const {
  const std::int64_t since = busy_since_.load(std::memory_order_relaxed);
  return std::chrono::nanoseconds(since == 0 ? 0 : now_ns() - since);
}

void EngineThread::run() {
  name_thread("lathe-engine");
  EngineNews news;
  for (;;) {
    Inbox inbox;
    {
      std::unique_lock lock(mutex_);
      if (failed_ || engine_->idle()) {
        busy_since_.store(0, std::memory_order_relaxed);
        wake_.wait(lock, [this] { return !inbox_.empty(); });
      }
      std::swap(inbox, inbox_);
    }
    if (inbox.stop) return;
    busy_since_.store(now_ns(), std::memory_order_relaxed);
    news.clear();
    apply(inbox, news);
    const auto start = std::chrono::steady_clock::now();
    if (!failed_ && !engine_->idle() && !step(news)) {
      news.failed = true;
      news.why = failed_;
    }
    news.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (engine_ != nullptr) news.stats = engine_->stats();
    on_news_(news);
  }
}

// A request that finds no memory is rejected; it has not reached the engine's lists.
Result<RequestId> EngineThread::submit(Request request) {
  try {
    return engine_->submit(std::move(request));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::exhausted, "request", "memory for its tokens and lists", "none", ""};
  }
}

// Submits requests first: a cancellation may be of one that arrived in the same batch.
void EngineThread::apply(Inbox& inbox, EngineNews& news) {
  for (Submission& s : inbox.submit) {
    if (failed_) {
      news.events.push_back({s.ticket, {}, {}, {}, {}, failed_});
      continue;
    }
    if (const auto sibling = requests_.find(s.sibling_of.value); sibling != requests_.end()) {
      s.request.sibling_of = sibling->second;
    }
    const auto id = submit(std::move(s.request));
    if (!id) {
      news.events.push_back({s.ticket, {}, {}, {}, {}, id.error()});
      continue;
    }
    requests_.emplace(s.ticket.value, *id);
    tickets_.emplace(id->value, s.ticket);
  }
  for (const Cancel& c : inbox.cancel) {
    const auto at = requests_.find(c.ticket.value);
    if (at != requests_.end()) engine_->cancel(at->second, c.reason);
  }
  for (auto& done : inbox.flush) {
    if (engine_ == nullptr) {
      done({});
      continue;
    }
    const EngineStats stats = engine_->stats();
    if (stats.running + stats.waiting == 0) engine_->clear_prefix_cache();
    done(stats);
  }
}

// A failed step has changed nothing (E9), so it is retried once. A step that threw (out of memory,
// for example) may have stopped anywhere and is not retried.
bool EngineThread::step(EngineNews& news) {
  Result<StepReport> report = StepReport();
  try {
    report = engine_->step();
    if (!report) report = engine_->step();
  } catch (const std::exception& e) {
    report = Error{ErrorCode::exhausted, "step", "an end", e.what(), ""};
    engine_ = nullptr;
  }
  if (!report) {
    fail(report.error(), news);
    return false;
  }
  take(std::move(*report), news);
  return true;
}

void EngineThread::take(StepReport report, EngineNews& news) {
  news.prefill_rows = report.prefill_rows;
  news.decode_rows = report.decode_rows;
  news.tokens = std::ssize(report.tokens);
  std::unordered_map<std::uint64_t, std::size_t> events;  // last event of each request
  const auto event_of = [&](RequestId id) -> TicketEvent* {
    const auto ticket = tickets_.find(id.value);
    if (ticket == tickets_.end()) return nullptr;
    const auto [at, added] = events.emplace(id.value, news.events.size());
    if (added) news.events.emplace_back().ticket = ticket->second;
    return &news.events[at->second];
  };
  for (const Started& s : report.started) {
    if (TicketEvent* e = event_of(s.request)) e->started = s;
  }
  for (TokenEvent& t : report.tokens) {
    TicketEvent* e = event_of(t.request);
    if (e == nullptr) continue;
    if (e->token) {
      events.erase(t.request.value);
      e = event_of(t.request);
    }
    e->token = std::move(t.sampled);
    e->prompt_logprobs = std::move(t.prompt_logprobs);
  }
  for (Finished& f : report.finished) {
    TicketEvent* e = event_of(f.request);
    if (e == nullptr) continue;
    requests_.erase(e->ticket.value);
    tickets_.erase(f.request.value);
    e->finished = std::move(f);
  }
}

void EngineThread::fail(const Error& error, EngineNews& news) {
  failed_ = error;
  std::vector<Ticket> open;
  for (const auto& [ticket, id] : requests_) open.push_back(Ticket{ticket});
  std::sort(open.begin(), open.end());
  for (Ticket t : open) {
    if (engine_ != nullptr) engine_->cancel(requests_.at(t.value));
    news.events.push_back({t, {}, {}, {}, {}, error});
  }
  requests_.clear();
  tickets_.clear();
}

}  // namespace lathe
