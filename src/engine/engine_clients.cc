// Whose request is next: clients share places and prefill rows evenly, and a client's own requests
// are in order of arrival or priority (E2). With one client all of this costs nothing per step.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace lathe {

bool Engine::is_before(const Sequence& a, const Sequence& b) {
  return std::pair(a.turn, a.id) < std::pair(b.turn, b.id);
}

// A client that comes goes before those that have been served since the last turn, and after those
// that wait.
Engine::Client& Engine::client_of(std::uint64_t id) {
  const auto [at, added] = clients_.try_emplace(id);
  if (added) {
    at->second.id = id;
    at->second.served = turn_ - 1;
  }
  return at->second;
}

void Engine::add_waiting(SequencePtr r) {
  std::deque<SequencePtr>& waiting = r->client->waiting;
  const auto at = std::upper_bound(
      waiting.begin(), waiting.end(), r,
      [](const SequencePtr& a, const SequencePtr& b) { return is_before(*a, *b); });
  waiting.insert(at, std::move(r));
  ++waiting_;
}

Engine::SequencePtr Engine::take_waiting(Client& client) {
  SequencePtr r = std::move(client.waiting.front());
  client.waiting.pop_front();
  --waiting_;
  return r;
}

void Engine::add_running(SequencePtr r) {
  ++r->client->running;
  r->client->served = turn_ += 2;
  if (clients_.size() > 1 || options_.priorities) ordered_ = false;
  running_.push_back(std::move(r));
}

// A running request has ended. Those of its client after it move up.
void Engine::leave_client(Sequence& r) {
  Client& client = *std::exchange(r.client, nullptr);
  --client.running;
  if (clients_.size() > 1) ordered_ = false;
  drop_if_idle(client);
}

void Engine::drop_if_idle(Client& client) {
  if (client.running == 0 && client.waiting.empty()) clients_.erase(client.id);
}

// The client that goes next: of those with a request that may start, the one that runs the fewest,
// and of equal ones the one that was served longest ago. `with_rows`: only clients with prefill
// rows left in this step. Null: none.
Engine::Client* Engine::next_client(bool with_rows) {
  Client* best = nullptr;
  for (auto& [id, client] : clients_) {
    if (client.waiting.empty() || (with_rows && client.rows == 0)) continue;
    const auto turn = std::pair(client.running, client.served);
    if (best != nullptr && turn >= std::pair(best->running, best->served)) continue;
    if (!waits_for_sibling(*client.waiting.front())) best = &client;
  }
  return best;
}

// Whether a waiting client runs at least two requests fewer than another.
bool Engine::waits_unfairly() const {
  if (clients_.size() < 2 || waiting_ == 0) return false;
  std::int64_t most = 0, least = kNoBound;
  for (const auto& [id, client] : clients_) {
    most = std::max(most, client.running);
    if (!client.waiting.empty()) least = std::min(least, client.running);
  }
  return least + 2 <= most;
}

// Preempts requests of clients that run at least two more than a waiting one, the last in order
// first, until the waiting one has a place and pages. A client that runs one more keeps it:
// otherwise the two would preempt each other in turn. Nothing is preempted in vain.
void Engine::make_room(StepReport& report) {
  if (!waits_unfairly()) return;
  count_available();
  std::vector<Sequence*> running, victims;
  for (const SequencePtr& r : running_) running.push_back(r.get());
  for (auto& [id, client] : clients_) {
    client.planned = client.running;
    client.taken = 0;
  }
  std::size_t preempted = 0;
  for (std::int64_t rows = options_.chunked_prefill_size; rows > 0;) {
    Client* next = nullptr;
    const auto front = [](const Client& c) -> const Sequence& {
      return *c.waiting[static_cast<std::size_t>(c.taken)];
    };
    for (auto& [id, client] : clients_) {
      if (client.taken == std::ssize(client.waiting) || waits_for_sibling(front(client))) continue;
      const auto turn = std::pair(client.planned, client.served);
      if (next == nullptr || turn < std::pair(next->planned, next->served)) next = &client;
    }
    if (next == nullptr || !find_room(front(*next), running, victims)) break;
    preempted = victims.size();
    rows -= front(*next).known();
    running.push_back(next->waiting[static_cast<std::size_t>(next->taken)].get());
    ++next->planned;
    ++next->taken;
  }
  for (std::size_t i = 0; i < preempted; ++i) preempt(*victims[i], report);
}

// Moves requests from `running` to `victims` until `next` fits. Returns false if it cannot.
bool Engine::find_room(const Sequence& next, std::vector<Sequence*>& running,
                       std::vector<Sequence*>& victims) {
  for (;;) {
    scheduled_.clear();
    for (const Sequence* r : running) scheduled_.push_back(r->scheduled());
    if (std::ssize(running) < options_.max_running_requests &&
        admits(scheduled_, next.scheduled(), limits(), available_)) {
      return true;
    }
    auto last = running.end();
    for (auto it = running.begin(); it != running.end(); ++it) {
      const Client& client = *(*it)->client;
      if (client.planned < next.client->planned + 2) continue;
      const auto later = [](const Sequence& a, const Sequence& b) {
        return std::pair(a.client->planned, std::pair(a.turn, a.id)) >
               std::pair(b.client->planned, std::pair(b.turn, b.id));
      };
      if (last == running.end() || later(**it, **last)) last = it;
    }
    if (last == running.end()) return false;
    Sequence& victim = **last;
    --victim.client->planned;
    for (std::size_t k = 0; k < available_.size(); ++k) {
      available_[k] += pages_.sole(k, victim.pages);
    }
    victims.push_back(&victim);
    running.erase(last);
  }
}

// The first running request of every client, then the second of each, and so on; requests of one
// place in order. So pages go to clients evenly, and the last request is the one to preempt.
void Engine::order_running() {
  if (std::exchange(ordered_, true)) return;
  std::ranges::sort(running_,
                    [](const SequencePtr& a, const SequencePtr& b) { return is_before(*a, *b); });
  for (auto& [id, client] : clients_) client.planned = 0;
  for (const SequencePtr& r : running_) r->place = r->client->planned++;
  std::ranges::stable_sort(running_, {}, [](const SequencePtr& r) { return r->place; });
}

// Shares the step's prefill rows between the clients with prompts to compute, so that a short
// prompt does not wait for another client's long ones. Waiting requests count if they have a place,
// unless the next one found no pages in the last step: rows for it would be wasted.
void Engine::share_prefill() {
  const bool shared = std::exchange(shares_rows_, clients_.size() > 1);
  if (!shares_rows_) {
    if (shared) {
      for (const SequencePtr& r : running_) r->most_rows = kNoBound;
    }
    return;
  }
  const std::int64_t rows = options_.chunked_prefill_size;
  for (auto& [id, client] : clients_) client.rows = 0;
  for (const SequencePtr& r : running_) {
    if (!r->scheduled().decodes()) r->client->rows += r->known() - r->computed;
  }
  const Client* const next = next_client(false);
  const bool blocked = next == nullptr || next->waiting.front()->id == no_room_;
  const std::int64_t places = blocked ? 0 : options_.max_running_requests - std::ssize(running_);
  for (auto& [id, client] : clients_) {
    const std::int64_t most = std::min(places, std::ssize(client.waiting));
    for (std::int64_t i = 0; i < most && client.rows < rows; ++i) {
      const Sequence& r = *client.waiting[static_cast<std::size_t>(i)];
      if (waits_for_sibling(r)) break;
      client.rows += r.known();
    }
  }
  std::vector<std::int64_t> shares;
  for (const auto& [id, client] : clients_) shares.push_back(client.rows);
  share_rows(rows, shares);
  std::size_t i = 0;
  for (auto& [id, client] : clients_) client.rows = shares[i++];
  for (const SequencePtr& r : running_) {
    if (r->scheduled().decodes()) continue;
    r->most_rows = std::min(r->known() - r->computed, r->client->rows);
    // The first request always moves on (E3).
    if (r == running_.front()) r->most_rows = std::max<std::int64_t>(1, r->most_rows);
    r->client->rows -= std::min(r->most_rows, r->client->rows);
  }
  if (!blocked) return;
  for (auto& [id, client] : clients_) client.rows = rows;  // what the running ones leave
}

}  // namespace lathe
