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
  /// Everything happens in the thread that runs `context`. `on_closed`: a connection has gone.
  ConnectionSet(boost::asio::io_context& context, const HttpLimits& limits,
                std::function<void()> on_closed);
  void set_handler(HttpHandler handler) { host_.handler = std::move(handler); }

  void add(boost::asio::generic::stream_protocol::socket socket);
  /// Looks at the time limits; once a second.
  void tick();
  /// Closes the connections without a request, and each other one once its answer has ended.
  void drain();
  bool empty() const { return connections_.empty(); }

 private:
  std::vector<std::shared_ptr<Connection>> all() const;
  void remove(Connection* c);

  boost::asio::io_context& context_;
  ConnectionHost host_;
  std::function<void()> on_closed_;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
};

}  // namespace lathe
