// Bytes of a connection: whatever they are and however they are cut, the same requests come out of
// them, within the limits, and each gets an answer or the connection ends.
#include <sys/socket.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/http/connection.h"

namespace {

namespace asio = boost::asio;

struct Scene {
  std::vector<std::string> requests;
  std::string answers;
};

void check(const lathe::HttpRequest& request, const lathe::HttpLimits& limits) {
  LATHE_CHECK(request.body.size() <= limits.max_body_bytes, "a body beyond its limit");
  LATHE_CHECK(request.headers.size() <= limits.max_headers, "headers beyond their limit");
  LATHE_CHECK(!request.method.empty(), "a request without a method");
  for (const lathe::HttpHeader& h : request.headers) {
    LATHE_CHECK(h.value.find_first_of("\r\n") == std::string::npos, "a header of several lines");
  }
}

Scene run(std::string_view bytes, std::size_t piece) {
  Scene out;
  asio::io_context context;
  lathe::ConnectionHost host;
  host.limits.max_body_bytes = 1000;
  host.limits.max_header_bytes = 1000;
  host.limits.max_headers = 10;
  host.buffer.resize(4096);
  host.closed = [](lathe::Connection*) {};
  host.handler.request = [&](lathe::HttpRequest request,
                             std::shared_ptr<lathe::HttpAnswer> answer) {
    check(request, host.limits);
    out.requests.push_back(request.method + " " + request.path + "?" + request.query + " " +
                           request.body);
    answer->send({});
  };
  host.handler.error = [](int status, std::string_view, std::string message) {
    LATHE_CHECK(status >= 400 && status < 500 && !message.empty(), "an error without words");
    lathe::HttpResponse response;
    response.status = status;
    return response;
  };
  std::array<int, 2> ends{};
  LATHE_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0, "no sockets");
  asio::generic::stream_protocol::socket socket(
      context, asio::generic::stream_protocol(AF_UNIX, SOCK_STREAM), ends[1]);
  socket.non_blocking(true);
  const auto connection = std::make_shared<lathe::Connection>(std::move(socket), host);
  connection->start();
  std::array<char, 4096> back;
  const auto turn = [&] {
    context.restart();
    context.poll();
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
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Scene whole = run(bytes, 4096);
  const Scene cut = run(bytes, 1 + data[0] % 61);
  LATHE_CHECK(whole.requests == cut.requests, "requests that depend on how their bytes are cut");
  LATHE_CHECK(whole.answers.empty() || whole.answers.starts_with("HTTP/1.1 "), "no answer");
  return 0;
}
