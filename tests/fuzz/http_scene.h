// Bytes of a connection for fuzz targets: the requests that come out of them, and the answers.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/http/connection.h"

namespace fuzz {

struct Scene {
  std::vector<std::string> requests;  // method, path, query, headers and body of each
  std::string answers;
  std::int64_t most_body_bytes = 0;  // counted at once
};

inline void check(const lathe::HttpRequest& request, const lathe::HttpLimits& limits) {
  LATHE_CHECK(request.body.size() <= limits.max_body_bytes, "a body beyond its limit");
  LATHE_CHECK(request.headers.size() <= limits.max_headers, "headers beyond their limit");
  LATHE_CHECK(!request.method.empty(), "a request without a method");
  for (const lathe::HttpHeader& h : request.headers) {
    LATHE_CHECK(h.value.find_first_of("\r\n") == std::string::npos, "a header of several lines");
  }
}

/// What a connection makes of `bytes` that arrive in pieces.
inline Scene run(std::string_view bytes, std::size_t piece) {
  Scene out;
  std::atomic<std::int64_t> kept_bytes{0};
  boost::asio::io_context context;
  lathe::ConnectionHost host;
  host.limits.max_body_bytes = 1000;
  host.limits.max_header_bytes = 1000;
  host.limits.max_headers = 10;
  host.kept_bytes = &kept_bytes;
  host.buffer.resize(4096);
  host.closed = [](lathe::Connection*) {};
  host.handler.request = [&](lathe::HttpRequest request,
                             std::shared_ptr<lathe::HttpAnswer> answer) {
    check(request, host.limits);
    std::string text = request.method + " " + request.path + "?" + request.query + " ";
    for (const lathe::HttpHeader& h : request.headers) text += h.name + ": " + h.value + "\n";
    out.requests.push_back(text + request.body);
    answer->send({});
  };
  host.handler.error = [](const lathe::HttpRequest&, int status, std::string_view,
                          std::string message) {
    LATHE_CHECK(status >= 400 && status < 500 && !message.empty(), "an error without words");
    lathe::HttpResponse response;
    response.status = status;
    return response;
  };
  std::array<int, 2> ends{};
  LATHE_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0, "no sockets");
  boost::asio::generic::stream_protocol::socket socket(
      context, boost::asio::generic::stream_protocol(AF_UNIX, SOCK_STREAM), ends[1]);
  socket.non_blocking(true);
  const auto connection = std::make_shared<lathe::Connection>(std::move(socket), host);
  connection->start();
  std::array<char, 4096> back;
  const auto turn = [&] {
    context.restart();
    context.poll();
    out.most_body_bytes = std::max(out.most_body_bytes, kept_bytes.load());
    for (ssize_t n = 0; (n = recv(ends[0], back.data(), back.size(), 0)) > 0;) {
      out.answers.append(back.data(), static_cast<std::size_t>(n));
    }
  };
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const std::string_view part = bytes.substr(at, piece);
    if (send(ends[0], part.data(), part.size(), MSG_NOSIGNAL) < 0) break;
    turn();
  }
  turn();
  close(ends[0]);
  context.restart();
  context.poll();
  connection->close();
  LATHE_CHECK(kept_bytes == 0, "bytes of a body or an answer that stay counted");
  return out;
}

}  // namespace fuzz
