#include "server/http/request_head.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/beast/http/error.hpp>

namespace lathe {
namespace {

std::string shown_or_nothing(std::string_view text) {
  return text.empty() ? "nothing" : shown_text(text);
}

std::string_view value_of(std::string_view line) {
  line.remove_prefix(std::min(line.find(':') + 1, line.size()));
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  return line;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_field_fault(const boost::system::error_code& error) {
  using Code = boost::beast::http::error;
  return error == Code::bad_field || error == Code::bad_value || error == Code::bad_obs_fold;
}

// Takes the first line of `in`, without its end.
std::string_view take_line(std::string_view& in) {
  const std::size_t end = in.find(kLineEnd);
  const std::string_view line = in.substr(0, end);
  in.remove_prefix(end == std::string_view::npos ? in.size() : end + kLineEnd.size());
  return line;
}

// Whether a chunk's line ends, or the data before it, in a line feed alone.
bool ends_in_line_feed(std::string_view line) {
  const std::size_t feed = line.find('\n');
  if (feed == std::string_view::npos) return false;
  const std::size_t size = line.find_first_not_of("0123456789abcdefABCDEF");
  return size == feed || line[size] == ';';
}

// Whether a line is in place in a trailer.
bool is_plain_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == 0 || colon == std::string_view::npos) return false;
  std::string name(line.substr(0, colon));
  for (char& c : name) {
    const bool upper = c >= 'A' && c <= 'Z', letter = upper || (c >= 'a' && c <= 'z');
    const bool digit = c >= '0' && c <= '9';
    if (!letter && !digit && std::string_view("!#$%&'*+-.^_`|~").find(c) == std::string_view::npos)
      return false;
    if (upper) c = static_cast<char>(c - 'A' + 'a');
  }
  for (const std::string_view own : {"content-length", "transfer-encoding", "connection"}) {
    if (name == own) return false;
  }
  return std::ranges::none_of(line, [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
  });
}

}  // namespace

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

bool has_lone_line_feed(std::string_view lines) {
  for (std::size_t at = lines.find('\n'); at != std::string_view::npos;
       at = lines.find('\n', at + 1)) {
    if (at == 0 || lines[at - 1] != '\r') return true;
  }
  return false;
}

std::string describe_fault(std::string_view in, const boost::system::error_code& error,
                           const Framing& framing) {
  using Code = boost::beast::http::error;
  const std::string_view line = in.substr(0, in.find(kLineEnd));
  const std::string value = shown_or_nothing(value_of(line));
  if (error == Code::bad_content_length) {
    if (framing.chunked) {
      return "Content-Length: wanted none beside Transfer-Encoding, got " + value;
    }
    if (framing.length && is_number(value)) {
      return fmt::format("Content-Length: wanted one, got {} and {}", *framing.length, value);
    }
    return "Content-Length: wanted a number of bytes, got " + value;
  }
  if (error == Code::bad_transfer_encoding) {
    return fmt::format("Transfer-Encoding: wanted {}, got {}",
                       framing.chunked ? "one" : "none beside Content-Length",
                       framing.chunked ? "another, " + value : value);
  }
  if (has_lone_line_feed(line)) return std::string(kLoneLineFeedInHead);
  if (error == Code::bad_line_ending) return "headers: wanted CRLF behind each, got another end";
  if (is_field_fault(error)) {
    return fmt::format("headers: wanted NAME: VALUE, got {} ({})", shown_or_nothing(line),
                       error.message());
  }
  return fmt::format("request: wanted HTTP/1.1, got {} ({})", shown_or_nothing(line),
                     error.message());
}

std::string describe_chunk_fault(std::string_view in, const boost::system::error_code& error) {
  using Code = boost::beast::http::error;
  if (in.starts_with(kLineEnd)) in.remove_prefix(kLineEnd.size());  // behind the last chunk's data
  const std::string_view chunk = take_line(in);
  if (ends_in_line_feed(chunk)) return std::string(kLoneLineFeedInChunk);
  if (error == Code::bad_chunk_extension) {
    return "chunk: wanted SIZE;NAME=VALUE, got " + shown_or_nothing(chunk);
  }
  const bool is_field = error == Code::bad_content_length || error == Code::bad_transfer_encoding ||
                        is_field_fault(error);
  if (!is_field) {
    return fmt::format(
        "chunk: wanted its size in hexadecimal digits, and CRLF behind its data, got {} ({})",
        shown_or_nothing(chunk), error.message());
  }
  std::string_view line = take_line(in);
  while (!in.empty() && is_plain_field(line)) line = take_line(in);
  return fmt::format(
      "trailer: wanted NAME: VALUE, and nothing about the body or the connection, got "
      "{} ({})",
      shown_or_nothing(line), error.message());
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
