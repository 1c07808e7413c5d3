// ConnectionThread: a thread that owns connections, so that the server's own thread only has to
// answer requests. Requests go to the server's thread and answers come back, each in order.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http/connection_set.h"

namespace lathe {

/// context.run(), in which a handler that finds no memory is lost and the others go on.
void run_through(boost::asio::io_context& context);

class ConnectionThread {
 public:
  /// `on_closed` and `handler` are called in the thread that runs `server`, except the handler's
  /// `error` and `reads_body`.
  ConnectionThread(boost::asio::io_context& server, const HttpLimits& limits,
                   std::atomic<std::int64_t>& kept_bytes, HttpHandler handler,
                   std::function<void()> on_closed);
  /// Ends the thread and aborts the connections that are left.
  ~ConnectionThread();
  ConnectionThread(const ConnectionThread&) = delete;
  ConnectionThread& operator=(const ConnectionThread&) = delete;

  /// The context that sockets for add() must use.
  boost::asio::io_context& context() { return context_; }
  // Called in the server's thread.
  void add(boost::asio::generic::stream_protocol::socket socket);
  void tick();
  void drain();
  /// Runs `job` in this thread, in order of posting. Jobs posted together wake it once.
  void post(std::function<void()> job);

 private:
  void run_jobs();

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  ConnectionSet set_;
  HttpHandler handler_;  // its `failed`, for any thread
  std::mutex mutex_;
  std::vector<std::function<void()>> jobs_;  // under the mutex
  std::thread thread_;                       // last: it uses all of the above
};

}  // namespace lathe
