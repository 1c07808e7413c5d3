#include "server/http/connection_thread.h"

#include <atomic>
#include <boost/asio/post.hpp>

#include "base/thread_name.h"

namespace lathe {
namespace {

namespace asio = boost::asio;

// An answer on a connection of another thread. Its calls become jobs of that thread. unsent() and
// gone() return what that thread last reported.
class RemoteAnswer : public HttpAnswer, public std::enable_shared_from_this<RemoteAnswer> {
 public:
  RemoteAnswer(ConnectionThread& home, std::shared_ptr<HttpAnswer> answer)
      : home_(home), answer_(std::move(answer)) {}

  void send(HttpResponse response) override {
    ended_ = true;
    home_.post([answer = answer_, response = std::move(response)]() mutable {
      answer->send(std::move(response));
    });
  }
  void begin_stream(std::vector<HttpHeader> headers) override {
    home_.post([answer = answer_, headers = std::move(headers)]() mutable {
      answer->begin_stream(std::move(headers));
    });
  }
  void write(std::string_view chunk) override {
    home_.post([self = shared_from_this(), text = std::string(chunk)] {
      self->answer_->write(text);
      self->look();
    });
  }
  void end_stream() override {
    ended_ = true;
    home_.post([answer = answer_] { answer->end_stream(); });
  }
  void drop() override {
    ended_ = true;
    home_.post([answer = answer_] { answer->drop(); });
  }
  bool gone() const override { return gone_.load(std::memory_order_relaxed); }
  void on_gone(std::function<void(ClientEnd)> call) override { on_gone_ = std::move(call); }
  // May be a step old. If bytes were left unsent, asks for a fresh value for the next call.
  std::size_t unsent() const override {
    const std::size_t bytes = unsent_.load(std::memory_order_relaxed);
    if (bytes > 0 && !looking_.exchange(true, std::memory_order_relaxed)) {
      home_.post([self = shared_from_this()] { self->look(); });
    }
    return bytes;
  }

  // Runs in the connection's thread.
  void look() const {
    looking_.store(false, std::memory_order_relaxed);
    unsent_.store(answer_->unsent(), std::memory_order_relaxed);
  }
  void set_gone() { gone_.store(true, std::memory_order_relaxed); }
  // Runs in the server's thread.
  void tell_gone(ClientEnd end) {
    const auto call = std::exchange(on_gone_, nullptr);
    if (call && !ended_) call(end);
  }

 private:
  ConnectionThread& home_;
  const std::shared_ptr<HttpAnswer> answer_;
  std::function<void(ClientEnd)> on_gone_;
  bool ended_ = false;
  std::atomic<bool> gone_{false};
  mutable std::atomic<bool> looking_{false};
  mutable std::atomic<std::size_t> unsent_{0};
};

}  // namespace

ConnectionThread::ConnectionThread(asio::io_context& server, const HttpLimits& limits,
                                   std::atomic<std::int64_t>& kept_bytes, HttpHandler handler,
                                   std::function<void()> on_closed)
    : work_(asio::make_work_guard(context_)),
      set_(context_, limits, kept_bytes,
           [&server, on_closed = std::move(on_closed)] { asio::post(server, on_closed); }) {
  HttpHandler here;
  here.error = handler.error;
  here.reads_body = handler.reads_body;
  here.refused = [&server, refused = handler.refused](int status, std::string_view code) {
    asio::post(server, [=] { refused(status, code); });
  };
  here.failed = [&server, failed = handler.failed](std::string_view what) {
    asio::post(server, [failed, text = std::string(what)] { failed(text); });
  };
  handler_ = here;
  here.request = [this, &server, call = std::move(handler.request)](
                     HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
    const auto remote = std::make_shared<RemoteAnswer>(*this, answer);
    answer->on_gone([remote, &server](ClientEnd end) {
      remote->set_gone();
      asio::post(server, [remote, end] { remote->tell_gone(end); });
    });
    asio::post(server, [this, call, request = std::move(request), remote]() mutable {
      try {
        call(std::move(request), remote);
      } catch (const std::exception& e) {
        remote->drop();
        tell_failure(handler_, e);
      }
    });
  };
  set_.set_handler(std::move(here));
  thread_ = std::thread([this] {
    name_thread("lathe-io");
    run_through(context_);
  });
}

void run_through(asio::io_context& context) {
  for (;;) {
    try {
      context.run();
      return;
    } catch (const std::bad_alloc&) {
      // Handlers with a connection or request of their own catch this themselves.
    }
  }
}

ConnectionThread::~ConnectionThread() {
  context_.stop();
  thread_.join();
}

void ConnectionThread::add(asio::generic::stream_protocol::socket socket) {
  asio::post(context_,
             [this, socket = std::move(socket)]() mutable { set_.add(std::move(socket)); });
}

void ConnectionThread::tick() {
  asio::post(context_, [this] { set_.tick(); });
}

void ConnectionThread::drain() {
  asio::post(context_, [this] { set_.drain(); });
}

void ConnectionThread::post(std::function<void()> job) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = jobs_.empty();
    jobs_.push_back(std::move(job));
  }
  if (first) asio::post(context_, [this] { run_jobs(); });
}

void ConnectionThread::run_jobs() {
  std::vector<std::function<void()>> jobs;
  {
    const std::lock_guard lock(mutex_);
    std::swap(jobs, jobs_);
  }
  for (const auto& job : jobs) {
    try {
      job();
    } catch (const std::bad_alloc& e) {
      // What the job was to send is lost; the client's time limit ends its connection.
      tell_failure(handler_, e);
    }
  }
}

}  // namespace lathe
