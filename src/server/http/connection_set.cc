#include "server/http/connection_set.h"

#include <netinet/tcp.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

namespace lathe {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kReadBytes = 64 << 10;

}  // namespace

ConnectionSet::ConnectionSet(asio::io_context& context, const HttpLimits& limits,
                             std::atomic<std::int64_t>& kept_bytes, std::function<void()> on_closed)
    : context_(context), on_closed_(std::move(on_closed)) {
  host_.limits = limits;
  host_.kept_bytes = &kept_bytes;
  host_.buffer.resize(kReadBytes);
  host_.closed = [this](Connection* c) { remove(c); };
}

void ConnectionSet::add(asio::generic::stream_protocol::socket socket, bool spare) {
  boost::system::error_code ignored;
  socket.non_blocking(true, ignored);
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const unsigned gone_after_ms = 60'000;
  setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &gone_after_ms,
             sizeof gone_after_ms);
  try {
    auto connection = std::make_shared<Connection>(std::move(socket), host_);
    connections_.emplace(connection.get(), connection);
    if (spare) spare_.push_back(connection.get());
    connection->start(spare);
  } catch (const std::bad_alloc& e) {
    on_closed_();
    tell_failure(host_.handler, e);
  }
}

void ConnectionSet::promote_one() {
  if (spare_.empty()) return;
  Connection* const oldest = spare_.front();
  spare_.erase(spare_.begin());
  oldest->promote();
}

void ConnectionSet::give_up_one() {
  const std::vector<Connection*> oldest_first = spare_;
  for (Connection* const c : oldest_first) {
    if (connections_.at(c)->give_up()) return;
  }
}

void ConnectionSet::tick() {
  ++host_.now;
  for (const auto& c : all()) c->tick();
}

void ConnectionSet::drain() {
  host_.draining = true;
  for (const auto& c : all()) {
    if (c->quiet()) c->close();
  }
}

std::vector<std::shared_ptr<Connection>> ConnectionSet::all() const {
  std::vector<std::shared_ptr<Connection>> out;
  for (const auto& [key, connection] : connections_) out.push_back(connection);
  return out;
}

void ConnectionSet::remove(Connection* c) {
  const auto at = connections_.find(c);
  if (at == connections_.end()) return;
  std::erase(spare_, c);
  // Defer the destruction: one of its own calls may be on the stack.
  asio::post(context_, [held = std::move(at->second)] {});
  connections_.erase(at);
  on_closed_();
}

}  // namespace lathe
