// ConnectionThread: a thread that owns connections for a server whose own thread only answers
// requests. Requests go to that thread, and what it sends comes back; both ways in order.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http/connection_set.h"

namespace lathe {

class ConnectionThread {
 public:
  /// `handler` is called in the thread that runs `server`, except for `error`. `on_closed` too.
  ConnectionThread(boost::asio::io_context& server, const HttpLimits& limits, HttpHandler handler,
                   std::function<void()> on_closed);
  /// Ends the thread; connections that are left break off.
  ~ConnectionThread();
  ConnectionThread(const ConnectionThread&) = delete;
  ConnectionThread& operator=(const ConnectionThread&) = delete;

  /// Where sockets for add() belong.
  boost::asio::io_context& context() { return context_; }
  // From the server's thread.
  void add(boost::asio::generic::stream_protocol::socket socket);
  void tick();
  void drain();
  /// Runs `job` in this thread, after those before. Jobs that come together wake it once.
  void post(std::function<void()> job);

 private:
  void run_jobs();

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  ConnectionSet set_;
  std::mutex mutex_;
  std::vector<std::function<void()>> jobs_;  // under the mutex
  std::thread thread_;                       // the last: it uses all of the above
};

}  // namespace lathe
