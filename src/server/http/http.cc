#include "server/http/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace lathe {

const std::string* HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& h : headers) {
    if (h.name == name) return &h.value;
  }
  return nullptr;
}

const char* status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

void tell_failure(const HttpHandler& handler, const std::exception& what) noexcept {
  try {
    handler.failed(what.what());
  } catch (const std::exception&) {
  }
}

std::string shown_text(std::string_view text) {
  constexpr std::size_t kMostBytes = 60;
  std::string out;
  for (const char c : text.substr(0, kMostBytes)) {
    const bool printable = c >= 0x20 && c < 0x7f;
    out += printable ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text.size() > kMostBytes ? out + "..." : out;
}

std::optional<std::string> decode_uri(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned char byte = 0;
    const std::string_view hex = text.substr(i + 1, 2);
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), byte, 16);
    if (error != std::errc() || end != hex.data() + 2 || byte < 0x20 || byte == 0x7f) {
      return std::nullopt;
    }
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

std::vector<QueryParameter> read_query(std::string_view query) {
  const auto decoded = [](std::string_view text) {
    return decode_uri(text).value_or(std::string(text));
  };
  std::vector<QueryParameter> out;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    if (pair.empty()) continue;
    out.push_back(
        {decoded(pair.substr(0, equals)), decoded(pair.substr(std::min(equals + 1, pair.size())))});
  }
  return out;
}

}  // namespace lathe
