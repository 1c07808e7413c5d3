#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <optional>

#include "server/http/connection_thread.h"
#include "server/http/posted_call.h"

namespace lathe {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

constexpr std::int64_t kOtherFiles = 64;  // open files besides connections
// Connections beyond the limit, so that /health answers when all are taken.
constexpr std::int64_t kSpare = 16;

// Raises the soft limit as far as it may go.
Result<void> raise_file_limit(std::int64_t connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const auto wanted = static_cast<rlim_t>(connections + kOtherFiles);
  if (limit.rlim_cur >= wanted) return {};
  if (limit.rlim_max <= static_cast<rlim_t>(kOtherFiles)) {
    return Error{ErrorCode::out_of_range, "ulimit -n",
                 fmt::format("more than {} files that this process may open", kOtherFiles),
                 fmt::format("{}", limit.rlim_max), "raise it, or ask who runs this machine"};
  }
  if (limit.rlim_max < wanted) {
    return Error{
        ErrorCode::out_of_range, "--max-connections",
        fmt::format("at most {}, as the system lets this process open {} files",
                    static_cast<std::int64_t>(limit.rlim_max) - kOtherFiles, limit.rlim_max),
        fmt::format("{}", connections), "raise ulimit -n, or pass a smaller number"};
  }
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
  return {};
}

// Of the path itself: a link to a socket is not one.
bool is_socket(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
}

// nohup sets it, so that a command outlives its terminal.
bool ignores_hangup() {
  struct sigaction action {};
  return sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

class AsioServer : public HttpServer {
 public:
  AsioServer(const HttpLimits& limits, int threads)
      : limits_(limits),
        thread_count_(threads),
        acceptor_(context_),
        signals_(context_),
        tick_(context_),
        own_(context_, limits, kept_bytes_, [this] { on_closed(); }) {}

  Result<void> listen(const std::string& host, int port) {
    const auto wrong = [](const std::string& field, const std::string& wanted,
                          const std::string& got, const std::string& hint) {
      return Error{ErrorCode::io, field, wanted, got, hint};
    };
    error_code error;
    asio::ip::tcp::resolver resolver(context_);
    const auto found =
        resolver.resolve(host, std::to_string(port), asio::ip::resolver_base::passive, error);
    if (error || found.empty()) {
      return wrong("--host", "an address of this machine", host + " (" + error.message() + ")", "");
    }
    const asio::ip::tcp::endpoint address = *found.begin();
    const asio::generic::stream_protocol::endpoint endpoint(address);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) acceptor_.non_blocking(true, error);
    if (error == asio::error::address_in_use) {
      return wrong("--port", "a free port", fmt::format("{}, which is taken", port),
                   "--port 0 takes any");
    }
    if (error) {
      return wrong("--host", "an address that can be listened on",
                   fmt::format("{}:{} ({})", host, port, error.message()), "");
    }
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    if (getsockname(acceptor_.native_handle(), reinterpret_cast<sockaddr*>(&bound), &size) == 0) {
      const in_port_t raw = bound.ss_family == AF_INET6
                                ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
      port_ = ntohs(raw);
    }
    return {};
  }

  Result<void> listen_at(const std::string& path) {
    const auto wrong = [&](const std::string& why) {
      return Error{ErrorCode::io, "--uds", "a path where a socket can be made",
                   fmt::format("{} ({})", path, why), ""};
    };
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
      return wrong(fmt::format("longer than {} bytes", sizeof(sockaddr_un::sun_path) - 1));
    }
    const asio::local::stream_protocol::endpoint address(path);
    const asio::generic::stream_protocol::endpoint endpoint(address);
    error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (error == asio::error::address_in_use) {
      // The socket file of a killed server refuses connections.
      asio::local::stream_protocol::socket probe(context_);
      error_code refused;
      probe.connect(address, refused);
      if (!is_socket(path)) return wrong("it is there, and is no socket");
      if (refused == asio::error::connection_refused && unlink(path.c_str()) == 0) {
        error = {};
        acceptor_.bind(endpoint, error);
      }
    }
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) acceptor_.non_blocking(true, error);
    if (error) return wrong(error.message());
    path_ = path;
    return {};
  }

  ~AsioServer() override { remove_file(); }

  void remove_file() override {
    if (!path_.empty() && is_socket(path_)) unlink(path_.c_str());
  }

  int port() const override { return port_; }

  void run(HttpHandler handler, std::function<void(int)> on_signal) override {
    on_tick_ = handler.tick;
    own_.set_handler(handler);
    if (thread_count_ > 1) {
      for (int i = 0; i < thread_count_; ++i) {
        threads_.push_back(std::make_unique<ConnectionThread>(context_, limits_, kept_bytes_,
                                                              handler, [this] { on_closed(); }));
      }
    }
    on_signal_ = std::move(on_signal);
    signals_.add(SIGTERM);
    signals_.add(SIGINT);
    if (!ignores_hangup()) signals_.add(SIGHUP);
    wait_signal();
    wait_tick();
    accept();
    run_through(context_);
    peer_.reset();  // it belongs to a connection thread's context
    threads_.clear();
  }

  void post(std::function<void()> call) override {
    asio::post(context_, PostedCall{std::move(call), &post_memory_});
  }

  void close_listener() override {
    error_code ignored;
    acceptor_.close(ignored);
    own_.drain();
    for (const auto& t : threads_) t->drain();
  }

  void stop() override {
    stopping_ = true;
    close_listener();
    stop_timer_.emplace(context_, std::chrono::seconds(1));
    stop_timer_->async_wait([this](const error_code&) { context_.stop(); });
    stop_if_empty();
  }

  std::int64_t connections() const override { return connections_; }

 private:
  bool is_full() const {
    return connections_ - static_cast<std::int64_t>(own_.spare()) >= limits_.max_connections;
  }

  // At the limit a few more are accepted, of which this thread serves what the handler spares.
  // Beyond, or out of file descriptors, connections wait in the system's backlog.
  void accept() {
    if (peer_ || !acceptor_.is_open() || connections_ >= limits_.max_connections + kSpare) return;
    ConnectionThread* const thread =
        threads_.empty() || is_full() ? nullptr : threads_[next_thread_++ % threads_.size()].get();
    peer_.emplace(thread ? thread->context() : context_);
    acceptor_.async_accept(*peer_, [this, thread](const error_code& error) {
      asio::generic::stream_protocol::socket socket = std::move(*peer_);
      peer_.reset();
      if (error) return;  // the next tick tries again
      const bool spare = is_full();
      ++connections_;
      if (thread != nullptr) {
        thread->add(std::move(socket));
      } else {
        own_.add(std::move(socket), spare);
      }
      // Room for the next one, which may be spared.
      if (static_cast<std::int64_t>(own_.spare()) > kSpare / 2) own_.give_up_one();
      accept();
    });
  }

  void on_closed() {
    --connections_;
    if (own_.spare() > 0 && !is_full()) own_.promote_one();
    accept();
    stop_if_empty();
  }

  void stop_if_empty() {
    if (stopping_ && connections_ == 0) context_.stop();
  }

  void wait_signal() {
    signals_.async_wait([this](const error_code& error, int number) {
      if (error) return;
      if (on_signal_) on_signal_(number);
      wait_signal();
    });
  }

  void wait_tick() {
    tick_.expires_after(std::chrono::seconds(1));
    tick_.async_wait([this](const error_code& error) {
      if (error) return;
      own_.tick();
      for (const auto& t : threads_) t->tick();
      accept();
      on_tick_();
      wait_tick();
    });
  }

  const HttpLimits limits_;
  const int thread_count_;
  std::atomic<std::int64_t> kept_bytes_{0};
  PostMemory post_memory_;
  asio::io_context context_{1};
  Acceptor acceptor_;
  asio::signal_set signals_;
  asio::steady_timer tick_;
  std::optional<asio::steady_timer> stop_timer_;
  std::function<void(int)> on_signal_;
  std::function<void()> on_tick_;
  ConnectionSet own_;  // spare connections; all if there are no other threads
  std::vector<std::unique_ptr<ConnectionThread>> threads_;
  std::size_t next_thread_ = 0;
  // The socket of the pending accept, which refers to it and may outlive the thread.
  std::optional<asio::generic::stream_protocol::socket> peer_;
  std::int64_t connections_ = 0;
  bool stopping_ = false;
  int port_ = 0;
  std::string path_;  // of a Unix socket
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::bind(const std::string& host, int port,
                                                     const std::string& path,
                                                     const HttpLimits& limits, int threads) {
  if (auto ok = raise_file_limit(limits.max_connections); !ok) return ok.error();
  auto server = std::make_unique<AsioServer>(limits, threads);
  const auto ok = path.empty() ? server->listen(host, port) : server->listen_at(path);
  if (!ok) return ok.error();
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace lathe
