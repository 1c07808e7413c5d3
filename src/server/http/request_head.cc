#include "server/http/request_head.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/beast/http/error.hpp>

namespace lathe {

bool is_host(std::string_view text) {
  std::size_t end = std::min(text.find(':'), text.size());
  if (text.starts_with('[')) {
    end = text.find(']');
    if (end == std::string_view::npos) return false;
    std::array<unsigned char, 16> address{};
    if (inet_pton(AF_INET6, std::string(text.substr(1, end - 1)).c_str(), address.data()) != 1) {
      return false;
    }
    ++end;
  } else if (!std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end),
                          [](char c) {
                            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                                   (c >= '0' && c <= '9') ||
                                   std::string_view("-._~").find(c) != std::string_view::npos;
                          })) {
    return false;
  }
  text.remove_prefix(end);
  return text.empty() ||
         (text[0] == ':' && text.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

std::string read_target(std::string_view target, HttpRequest& out) {
  const std::string_view given = target;
  const std::size_t scheme = target.find("://");
  bool host = true;
  if (!target.starts_with('/') && scheme != std::string_view::npos) {
    target.remove_prefix(scheme + 3);
    const std::size_t end = std::min(target.find_first_of("/?"), target.size());
    host = is_host(target.substr(0, end));
    for (HttpHeader& h : out.headers) {
      if (h.name == "host") h.value = target.substr(0, end);
    }
    target.remove_prefix(end);
  }
  const std::size_t question = target.find('?');
  out.path = target.substr(0, question);
  if (out.path.empty()) out.path = "/";
  if (question != std::string_view::npos) out.query = target.substr(question + 1);
  if (!host) return "target: wanted a name or address of a host, got " + shown_text(given);
  const auto path = decode_uri(out.path);
  if (!path || !decode_uri(out.query)) {
    return "target: wanted % only before two hex digits of no control character, got " +
           shown_text(given);
  }
  out.path = *path;
  return {};
}

std::string describe_fault(std::string_view in, const boost::system::error_code& error) {
  const std::string_view line = in.substr(0, in.find(kLineEnd));
  if (error == boost::beast::http::error::bad_content_length) {
    std::string_view length = line.substr(std::min(line.find(':') + 1, line.size()));
    length.remove_prefix(std::min(length.find_first_not_of(' '), length.size()));
    return "Content-Length: wanted a number of bytes, got " + shown_text(length);
  }
  return fmt::format("request: wanted HTTP/1.1, got {} ({})", shown_text(line), error.message());
}

bool read_version(std::string& in) {
  const std::size_t end = in.find(kLineEnd);
  std::size_t size = std::min(end, in.size());
  if (end == std::string::npos && in.ends_with('\r')) --size;
  constexpr std::string_view kVersion = " HTTP/1.";
  if (size > kVersion.size() && std::string_view(in).substr(0, size - 1).ends_with(kVersion) &&
      in[size - 1] >= '2' && in[size - 1] <= '9') {
    in[size - 1] = '1';
  }
  return end != std::string::npos;
}

}  // namespace lathe
