// ConnectionSet: the connections of one thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "server/http/connection.h"

namespace lathe {

class ConnectionSet {
 public:
  /// Runs in the thread of `context` only. `on_closed` is called after a connection has closed.
  /// `kept_bytes`: of all sets of the server; outlives the set.
  ConnectionSet(boost::asio::io_context& context, const HttpLimits& limits,
                std::atomic<std::int64_t>& kept_bytes, std::function<void()> on_closed);
  void set_handler(HttpHandler handler) { host_.handler = std::move(handler); }

  /// Without memory the socket closes. `spare`: as of Connection::start().
  void add(boost::asio::generic::stream_protocol::socket socket, bool spare = false);
  std::size_t spare() const { return spare_.size(); }
  /// The oldest spare connection becomes an ordinary one.
  void promote_one();
  /// Ends the oldest spare connection that waits.
  void give_up_one();
  /// Enforces the time limits; called once a second.
  void tick();
  /// Closes idle connections at once, others after their answers.
  void drain();
  bool empty() const { return connections_.empty(); }

 private:
  std::vector<std::shared_ptr<Connection>> all() const;
  void remove(Connection* c);

  boost::asio::io_context& context_;
  ConnectionHost host_;
  std::function<void()> on_closed_;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::vector<Connection*> spare_;  // oldest first
};

}  // namespace lathe
