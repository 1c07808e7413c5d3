#include "server/http/connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/error.hpp>

#include "server/http/request_head.h"

namespace lathe {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::int64_t kLingerSeconds = 2;          // keep reading after a rejection
constexpr std::size_t kMostUnreadBytes = 64 << 10;  // of answers, before the next request is read

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
  void drop() override {
    if (const auto c = get()) c->close();
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

// The other end's address; "" if it has none, or has gone.
std::string address_of(const asio::generic::stream_protocol::socket& socket) {
  error_code error;
  const auto end = socket.remote_endpoint(error);
  std::array<char, INET6_ADDRSTRLEN> text{};
  const auto* const any = end.data();
  if (error || (any->sa_family != AF_INET && any->sa_family != AF_INET6)) return "";
  const void* const bytes =
      any->sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(any)->sin_addr)
          : &reinterpret_cast<const sockaddr_in6*>(any)->sin6_addr;
  const char* const out = inet_ntop(any->sa_family, bytes, text.data(), text.size());
  return out == nullptr ? "" : out;
}

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

std::vector<HttpHeader> headers_of(const http::fields& fields) {
  std::vector<HttpHeader> out;
  for (const auto& field : fields) {
    out.push_back({lower(view(field.name_string())), std::string(view(field.value()))});
  }
  return out;
}

// Two of these would be two requests in one: which one counts would depend on the reader.
constexpr http::field kSingle[] = {http::field::host, http::field::authorization,
                                   http::field::content_type, http::field::origin,
                                   http::field::expect};

}  // namespace

Connection::Connection(asio::generic::stream_protocol::socket socket, ConnectionHost& host)
    : socket_(std::move(socket)),
      host_(host),
      on_chunk_([this](std::uint64_t, boost::beast::string_view extensions, error_code& error) {
        extension_bytes_ += extensions.size();
        if (extension_bytes_ > host_.limits.max_header_bytes) error = http::error::header_limit;
        // The parser takes any byte between quotes. A proxy may take a line feed for the line's
        // end.
        const auto control = [](char c) {
          return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
        };
        if (std::ranges::any_of(extensions, control)) error = http::error::bad_chunk_extension;
      }),
      since_(host.now),
      taken_(host.now) {}

void Connection::start(bool spare) {
  address_ = address_of(socket_);
  spare_ = spare;
  wait_readable();
}

void Connection::promote() {
  spare_ = false;
  if (!std::exchange(waits_, false)) return;
  since_ = host_.now;
  wait_readable();
}

bool Connection::give_up() {
  if (!spare_ || state_ != State::idle) return false;
  if (!std::exchange(waits_, false)) {
    close();
    return true;
  }
  refuse(503, "queue_full",
         fmt::format("connections: wanted at most {} at once, got more; retry later, or "
                     "--max-connections",
                     host_.limits.max_connections));
  return true;
}

// Whether a spare connection's request is one of those that it serves. The others stay unread.
bool Connection::may_read() {
  if (!spare_ || state_ != State::idle || !in_.empty()) return true;
  std::array<char, 64> begin;
  const ssize_t n = recv(socket_.native_handle(), begin.data(), begin.size(), MSG_PEEK);
  if (n <= 0) return true;  // gone, or nothing there
  waits_ = !host_.handler.spares({begin.data(), static_cast<std::size_t>(n)});
  return !waits_;
}

void Connection::wait_readable() {
  if (reading_ || waits_ || state_ == State::closed) return;
  reading_ = true;
  socket_.async_wait(asio::socket_base::wait_read,
                     [self = shared_from_this()](const error_code& error) {
                       self->reading_ = false;
                       if (!error) self->guarded([&] { self->on_readable(); });
                     });
}

void Connection::on_readable() {
  if (state_ == State::closed || !may_read()) return;
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
  const bool waits = state_ == State::answering || (state_ == State::idle && is_behind());
  if (waits && in_.size() + n > host_.limits.max_header_bytes) {
    // Too much after the request in progress to keep. Go on reading, or the client's leaving
    // would go unnoticed, and close after the answer.
    keep_alive_ = false;
    in_.clear();
    if (state_ == State::idle) finish();
  } else if (state_ != State::closing && (state_ != State::answering || keep_alive_)) {
    in_.append(host_.buffer, 0, n);
    parse();
  }
  wait_readable();
}

// Counts bytes of a body or an answer. Returns false if they are too many for all connections
// together.
bool Connection::keep(std::int64_t& kept, std::size_t bytes) {
  if (host_.kept_bytes == nullptr) return true;
  const auto more = static_cast<std::int64_t>(bytes) - kept;
  if (more == 0) return true;
  kept += more;
  return host_.kept_bytes->fetch_add(more, std::memory_order_relaxed) + more <=
             host_.limits.max_bodies_bytes ||
         more < 0;
}

// Whether earlier answers wait for the client to read them. Until it does, its next requests wait,
// or their answers would fill the memory.
bool Connection::is_behind() const { return unsent() > kMostUnreadBytes; }

void Connection::parse() {
  if (parsing_) return;
  parsing_ = true;
  while (!in_.empty() &&
         (state_ == State::idle || state_ == State::head || state_ == State::body)) {
    if (state_ == State::idle) {
      if (is_behind()) break;
      while (in_.starts_with(kLineEnd)) in_.erase(0, kLineEnd.size());  // RFC 9112, 2.2
      if (in_.empty() || in_ == "\r") break;
      state_ = State::head;
      version_read_ = false;
      since_ = host_.now;
      parser_.emplace();
      parser_->header_limit(static_cast<std::uint32_t>(host_.limits.max_header_bytes));
      parser_->body_limit(host_.limits.max_body_bytes);
      parser_->on_chunk_header(on_chunk_);
      extension_bytes_ = 0;
    }
    if (state_ == State::head && !version_read_) version_read_ = read_version(in_);
    // A head, the head of a chunk, and the last chunk with its trailer are parsed as a whole, so
    // they have to fit in here (RFC 9112, 7.1.1 and 7.1.2).
    const std::size_t window = std::min(in_.size(), host_.limits.max_header_bytes);
    const bool full = window == host_.limits.max_header_bytes;
    error_code error;
    const std::size_t n = parser_->put(asio::buffer(in_.data(), window), error);
    in_.erase(0, n);
    if (state_ == State::body && !keep(body_bytes_, parser_->get().body().size())) {
      refuse_bodies();
      break;
    }
    if (error == http::error::need_more && n > 0) continue;
    // Else it would wait for an end that never comes.
    const bool lone_line_feed = error == http::error::need_more && has_lone_line_feed(in_);
    if (error == http::error::need_more && !full && !lone_line_feed) break;
    if (lone_line_feed) {
      refuse(400, "invalid_http",
             std::string(state_ == State::body ? kLoneLineFeedInChunk : kLoneLineFeedInHead));
    } else if (error == http::error::header_limit || error == http::error::need_more) {
      refuse(431, "headers_too_large",
             fmt::format("{}: wanted at most {} bytes, got more; --max-header-bytes",
                         state_ == State::body ? "chunk extensions or trailer" : "headers",
                         host_.limits.max_header_bytes));
    } else if (error == http::error::body_limit) {
      refuse(413, "body_too_large",
             fmt::format("body: wanted at most {} bytes, got more; --max-body-bytes",
                         host_.limits.max_body_bytes));
    } else if (error) {
      Framing framing{.chunked = parser_->chunked(), .length = {}};
      if (const auto length = parser_->content_length()) framing.length = *length;
      // in_ begins with the faulty line.
      refuse(400, "invalid_http",
             state_ == State::body ? describe_chunk_fault(in_, error)
                                   : describe_fault(in_, error, framing));
    } else {
      if (state_ == State::head && parser_->is_header_done() && !on_head()) break;
      if (parser_->is_done()) on_request();
    }
  }
  parsing_ = false;
}

void Connection::refuse_bodies() {
  refuse(503, "queue_full",
         fmt::format("bodies: wanted at most {} bytes of all requests at once, got more; retry "
                     "later, or --max-bodies-bytes",
                     host_.limits.max_bodies_bytes));
}

// Returns false if it rejected the request or passed it on without its body.
bool Connection::on_head() {
  const auto& message = parser_->get();
  http11_ = message.version() >= 11;
  keep_alive_ = message.keep_alive();
  head_only_ = message.method() == http::verb::head;
  if (!check_head()) return false;
  request_ = {};
  request_.method = view(message.method_string());
  request_.address = address_;
  request_.headers = headers_of(message);
  if (const auto problem = read_target(view(message.target()), request_); !problem.empty()) {
    refuse(400, "invalid_http", problem);
    return false;
  }
  state_ = State::body;
  since_ = host_.now;
  if (parser_->is_done()) return true;  // without a body
  const auto length = parser_->content_length();
  const bool here = length && *length <= in_.size();  // nothing to wait for, or to spare
  if (!here && !host_.handler.reads_body(request_)) {
    keep_alive_ = false;
    on_request();
    return false;
  }
  const auto expect = message.find(http::field::expect);
  if (http11_ && expect != message.end() && lower(view(expect->value())) == "100-continue") {
    put("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return state_ == State::body;  // a write may have found the client gone
}

// Returns false if it rejected the request.
bool Connection::check_head() {
  const auto& message = parser_->get();
  const auto count = static_cast<std::size_t>(std::distance(message.begin(), message.end()));
  if (count > host_.limits.max_headers) {
    refuse(431, "headers_too_large",
           fmt::format("headers: wanted at most {}, got {}", host_.limits.max_headers, count));
    return false;
  }
  if (message.find(http::field::content_encoding) != message.end()) {
    refuse(415, "content_type",
           "Content-Encoding: wanted none, got " +
               shown_text(view(message[http::field::content_encoding])));
    return false;
  }
  // With a list of codings two readers may disagree on where the body ends (request smuggling).
  const auto coding = message.find(http::field::transfer_encoding);
  if (coding != message.end() && (message.count(http::field::transfer_encoding) > 1 ||
                                  lower(view(coding->value())) != "chunked")) {
    const auto codings = message.count(http::field::transfer_encoding);
    refuse(
        400, "invalid_http",
        "Transfer-Encoding: wanted chunked, got " +
            (codings > 1 ? fmt::format("{} of them", codings) : shown_text(view(coding->value()))));
    return false;
  }
  for (const http::field name : kSingle) {
    if (message.count(name) < 2) continue;
    refuse(400, "invalid_http",
           fmt::format("{}: wanted one, got {}", view(http::to_string(name)), message.count(name)));
    return false;
  }
  if (message.count("x-api-key") > 1) {
    refuse(400, "invalid_http",
           fmt::format("X-Api-Key: wanted one, got {}", message.count("x-api-key")));
    return false;
  }
  const auto host = message.find(http::field::host);
  if (host == message.end() ? http11_ : !is_host(view(host->value()))) {
    refuse(400, "invalid_http",
           fmt::format("Host: wanted a name or address, got {}",
                       host == message.end() ? "none" : shown_text(view(host->value()))));
    return false;
  }
  return true;
}

void Connection::on_request() {
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  state_ = State::answering;
  streaming_ = false;
  wrote_ = host_.now;
  ++number_;
  host_.handler.request(std::move(request_), std::make_shared<Answer>(weak_from_this(), number_));
}

void Connection::refuse(int status, std::string_view code, std::string message) {
  HttpRequest seen;  // whose head may be incomplete
  if (parser_) {
    seen.headers = headers_of(parser_->get());
    read_target(view(parser_->get().target()), seen);
  }
  state_ = State::answering;
  parser_.reset();
  ++number_;
  HttpResponse response = host_.handler.error(seen, status, code, std::move(message));
  response.close = true;
  host_.handler.refused(status, code);
  send(std::move(response));
}

void Connection::parse_soon() {
  if (parsing_) return;
  asio::post(socket_.get_executor(),
             [self = shared_from_this()] { self->guarded([&] { self->parse(); }); });
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
  parser_.reset();
  keep(body_bytes_, 0);
  keep(unsent_bytes_, 0);
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
      if (unsent() > 0) break;  // the client still reads the last answer
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
