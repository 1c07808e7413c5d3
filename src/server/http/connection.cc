#include "server/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/error.hpp>
#include <charconv>

namespace lathe {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::int64_t kLingerSeconds = 2;  // keep reading after a rejection
constexpr std::string_view kLineEnd = "\r\n";
constexpr std::size_t kKeptCapacity = 16 << 10;

class Answer : public HttpAnswer {
 public:
  Answer(std::weak_ptr<Connection> connection, std::uint64_t number)
      : connection_(std::move(connection)), number_(number) {}

  void send(HttpResponse response) override {
    if (const auto c = get()) c->send(std::move(response));
  }
  void begin_stream(std::vector<HttpHeader> headers) override {
    if (const auto c = get()) c->begin_stream(headers);
  }
  void write(std::string_view chunk) override {
    if (const auto c = get()) c->write_chunk(chunk);
  }
  void end_stream() override {
    if (const auto c = get()) c->end_stream();
  }
  bool gone() const override { return get() == nullptr; }
  void on_gone(std::function<void(ClientEnd)> call) override {
    if (const auto c = get()) c->set_on_gone(std::move(call));
  }
  std::size_t unsent() const override {
    const auto c = get();
    return c ? c->unsent() : 0;
  }

 private:
  std::shared_ptr<Connection> get() const {
    auto c = connection_.lock();
    if (c && !c->answers(number_)) c = nullptr;
    return c;
  }
  std::weak_ptr<Connection> connection_;
  std::uint64_t number_;
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

}  // namespace

Connection::Connection(asio::generic::stream_protocol::socket socket, ConnectionHost& host)
    : socket_(std::move(socket)), host_(host), since_(host.now), taken_(host.now) {}

void Connection::start() { wait_readable(); }

void Connection::wait_readable() {
  if (reading_ || state_ == State::closed) return;
  if (state_ == State::answering && in_.size() >= host_.limits.max_header_bytes) return;
  reading_ = true;
  socket_.async_wait(asio::socket_base::wait_read,
                     [self = shared_from_this()](const error_code& error) {
                       self->reading_ = false;
                       if (!error) self->on_readable();
                     });
}

void Connection::on_readable() {
  if (state_ == State::closed) return;
  error_code error;
  const std::size_t n = socket_.read_some(asio::buffer(host_.buffer), error);
  if (error == asio::error::would_block || error == asio::error::interrupted) {
    wait_readable();
    return;
  }
  if (error) {  // a half-closed socket counts as gone, too: a client that waits keeps it open
    lose(ClientEnd::left);
    return;
  }
  if (state_ != State::closing) {
    in_.append(host_.buffer, 0, n);
    parse();
  }
  wait_readable();
}

void Connection::parse() {
  if (parsing_) return;
  parsing_ = true;
  while (!in_.empty() &&
         (state_ == State::idle || state_ == State::head || state_ == State::body)) {
    if (state_ == State::idle) {
      state_ = State::head;
      since_ = host_.now;
      parser_.emplace();
      parser_->header_limit(static_cast<std::uint32_t>(host_.limits.max_header_bytes));
      parser_->body_limit(host_.limits.max_body_bytes);
    }
    error_code error;
    const std::size_t n = parser_->put(asio::buffer(in_), error);
    in_.erase(0, n);
    if (error == http::error::need_more) break;
    if (error == http::error::header_limit) {
      refuse(431, "headers_too_large",
             fmt::format("headers: wanted at most {} bytes, got more; --max-header-bytes",
                         host_.limits.max_header_bytes));
    } else if (error == http::error::body_limit) {
      refuse(413, "body_too_large",
             fmt::format("body: wanted at most {} bytes, got more; --max-body-bytes",
                         host_.limits.max_body_bytes));
    } else if (error) {
      refuse(400, "invalid_http",
             fmt::format("request: wanted HTTP/1.1, got something else ({})", error.message()));
    } else {
      if (state_ == State::head && parser_->is_header_done() && !on_head()) break;
      if (parser_->is_done()) on_request();
    }
  }
  parsing_ = false;
}

// Returns false if it rejected the request.
bool Connection::on_head() {
  const auto& message = parser_->get();
  http11_ = message.version() >= 11;
  keep_alive_ = message.keep_alive();
  head_only_ = message.method() == http::verb::head;
  const auto count = static_cast<std::size_t>(std::distance(message.begin(), message.end()));
  if (count > host_.limits.max_headers) {
    refuse(431, "headers_too_large",
           fmt::format("headers: wanted at most {}, got {}", host_.limits.max_headers, count));
    return false;
  }
  if (message.find(http::field::content_encoding) != message.end()) {
    refuse(415, "content_type", "Content-Encoding: wanted a body as it is, got an encoded one");
    return false;
  }
  // With a list of codings two readers may disagree on where the body ends (request smuggling).
  const auto coding = message.find(http::field::transfer_encoding);
  if (coding != message.end() &&
      (message.count(http::field::transfer_encoding) > 1 ||
       lower(std::string_view(coding->value().data(), coding->value().size())) != "chunked")) {
    refuse(400, "invalid_http", "Transfer-Encoding: wanted chunked, got another");
    return false;
  }
  if (message.count(http::field::host) > 1) {
    refuse(400, "invalid_http", "Host: wanted one, got several");
    return false;
  }
  state_ = State::body;
  since_ = host_.now;
  const auto expect = message.find(http::field::expect);
  if (expect != message.end() &&
      lower(std::string_view(expect->value().data(), expect->value().size())) == "100-continue") {
    put("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return state_ == State::body;  // a write may have found the client gone
}

void Connection::on_request() {
  HttpRequest request;
  auto message = parser_->release();
  parser_.reset();
  request.method.assign(message.method_string().data(), message.method_string().size());
  const std::string_view target(message.target().data(), message.target().size());
  const std::size_t question = target.find('?');
  request.path = std::string(target.substr(0, question));
  if (question != std::string_view::npos) request.query = std::string(target.substr(question + 1));
  for (const auto& field : message) {
    request.headers.push_back(
        {lower(std::string_view(field.name_string().data(), field.name_string().size())),
         std::string(field.value().data(), field.value().size())});
  }
  request.body = std::move(message.body());
  state_ = State::answering;
  streaming_ = false;
  wrote_ = host_.now;
  ++number_;
  host_.handler.request(std::move(request), std::make_shared<Answer>(weak_from_this(), number_));
}

void Connection::refuse(int status, std::string_view code, std::string message) {
  state_ = State::answering;
  ++number_;
  HttpResponse response = host_.handler.error(status, code, std::move(message));
  response.close = true;
  host_.handler.refused(status, code);
  send(std::move(response));
}

void Connection::send(HttpResponse response) {
  if (response.close || host_.draining) keep_alive_ = false;
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, status_text(response.status));
  if (response.status != 204 && response.status != 304) {
    out += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", response.content_type,
                       response.body.size());
  }
  for (const HttpHeader& h : response.headers) out += h.name + ": " + h.value + "\r\n";
  if (!keep_alive_) {
    out += "Connection: close\r\n";
  } else if (!http11_) {
    out += "Connection: keep-alive\r\n";
  }
  out += "\r\n";
  if (!head_only_) out += response.body;
  put(out);
  answer_ended();
}

void Connection::begin_stream(const std::vector<HttpHeader>& headers) {
  chunked_ = http11_;
  if (!chunked_ || host_.draining) keep_alive_ = false;
  std::string out =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
      "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  for (const HttpHeader& h : headers) out += h.name + ": " + h.value + "\r\n";
  if (chunked_) out += "Transfer-Encoding: chunked\r\n";
  if (!keep_alive_) out += "Connection: close\r\n";
  out += "\r\n";
  streaming_ = true;
  put(out);
}

void Connection::write_chunk(std::string_view chunk) {
  if (chunk.empty()) return;
  wrote_ = host_.now;
  if (chunked_) {
    std::array<char, 18> size;  // 16 hex digits, CRLF
    char* end = std::to_chars(size.data(), size.data() + 16, chunk.size(), 16).ptr;
    *end++ = '\r';
    *end++ = '\n';
    out_.append(size.data(), static_cast<std::size_t>(end - size.data()));
  }
  out_ += chunk;
  if (chunked_) out_ += kLineEnd;
  flush();
}

void Connection::end_stream() {
  if (chunked_) put("0\r\n\r\n");
  answer_ended();
}

void Connection::answer_ended() {
  if (state_ != State::answering) return;
  on_gone_ = nullptr;
  streaming_ = false;
  since_ = host_.now;
  if (!keep_alive_ || host_.draining) {
    finish();
    return;
  }
  state_ = State::idle;
  if (!in_.empty() && !parsing_) {
    asio::post(socket_.get_executor(), [self = shared_from_this()] { self->parse(); });
  }
  wait_readable();
}

void Connection::put(std::string_view bytes) {
  out_ += bytes;
  flush();
}

void Connection::flush() {
  if (state_ == State::closed) return;
  const auto too_slow = [this] { return streaming_ && unsent() > host_.limits.max_unsent_bytes; };
  if (writing_) {  // a write is pending and more has been queued
    if (too_slow()) lose(ClientEnd::slow);
    return;
  }
  while (sent_ < out_.size()) {
    error_code error;
    const std::size_t n =
        socket_.write_some(asio::buffer(out_.data() + sent_, out_.size() - sent_), error);
    if (error == asio::error::would_block || error == asio::error::interrupted) {
      if (too_slow()) {
        lose(ClientEnd::slow);
        return;
      }
      writing_ = true;
      socket_.async_wait(asio::socket_base::wait_write,
                         [self = shared_from_this()](const error_code& failed) {
                           self->writing_ = false;
                           if (!failed) self->flush();
                         });
      return;
    }
    if (error) {
      lose(ClientEnd::left);
      return;
    }
    sent_ += n;
    taken_ = host_.now;
  }
  out_.clear();
  sent_ = 0;
  if (out_.capacity() > kKeptCapacity) out_.shrink_to_fit();
  taken_ = host_.now;
  if (state_ == State::closing) {
    error_code ignored;
    socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  }
}

// Shuts down the sending side first: a reset would discard what the client has not read yet.
void Connection::finish() {
  if (state_ == State::closed) return;
  state_ = State::closing;
  since_ = host_.now;
  in_.clear();
  flush();
  wait_readable();
}

void Connection::lose(ClientEnd why) {
  if (state_ == State::closed) return;
  const std::function<void(ClientEnd)> gone = std::move(on_gone_);
  on_gone_ = nullptr;
  close();
  if (gone) gone(why);
}

void Connection::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  error_code ignored;
  socket_.close(ignored);
  host_.closed(this);
}

void Connection::tick() {
  const HttpLimits& limits = host_.limits;
  const auto past = [this](std::int64_t start, int seconds) {
    return host_.now - start >= seconds;
  };
  if (unsent() > 0 && past(taken_, limits.slow_client_timeout)) {
    lose(ClientEnd::slow);
    return;
  }
  switch (state_) {
    case State::idle:
      if (past(since_, number_ == 0 ? limits.header_timeout : limits.keep_alive_timeout)) close();
      break;
    case State::head:
      if (past(since_, limits.header_timeout)) close();
      break;
    case State::body:
      if (past(since_, limits.body_timeout)) {
        refuse(408, "body_timeout",
               fmt::format("body: wanted within {} s, got a part; --body-timeout",
                           limits.body_timeout));
      }
      break;
    case State::answering:
      // An empty line: event-stream parsers skip it, proxies see traffic.
      if (streaming_ && past(wrote_, limits.sse_keep_alive)) write_chunk("\n");
      break;
    case State::closing:
      if (unsent() == 0 && past(since_, static_cast<int>(kLingerSeconds))) close();
      break;
    case State::closed:
      break;
  }
}

}  // namespace lathe
