// Connection: its answers, and the bytes that wait for the client.
#include <fmt/format.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <charconv>

#include "server/http/connection.h"
#include "server/http/request_head.h"

namespace lathe {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t kKeptCapacity = 16 << 10;

}  // namespace

void Connection::send(HttpResponse response) {
  if (response.close || host_.draining || spare_) keep_alive_ = false;
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
  if (!chunked_ || host_.draining || spare_) keep_alive_ = false;
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
  keep(body_bytes_, 0);
  on_gone_ = nullptr;
  streaming_ = false;
  since_ = host_.now;
  if (!keep_alive_ || host_.draining) {
    finish();
    return;
  }
  state_ = State::idle;
  if (!in_.empty()) parse_soon();
  wait_readable();
}

void Connection::put(std::string_view bytes) {
  out_ += bytes;
  flush();
}

void Connection::flush() {
  if (state_ == State::closed) return;
  const auto too_slow = [this] {
    const bool all_fit = keep(unsent_bytes_, unsent());
    return !all_fit || (streaming_ && unsent() > host_.limits.max_unsent_bytes);
  };
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
                           if (!failed) self->guarded([&] { self->flush(); });
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
  keep(unsent_bytes_, 0);
  if (state_ == State::idle) {
    since_ = host_.now;
    if (!in_.empty()) parse_soon();
  }
  if (state_ == State::closing) {
    error_code ignored;
    socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  }
}

}  // namespace lathe
