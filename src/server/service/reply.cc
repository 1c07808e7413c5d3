#include "server/service/reply.h"

#include <fmt/format.h>
#include <sys/random.h>

#include "base/check.h"

namespace lathe {

void Reply::add_headers(std::vector<HttpHeader> headers) {
  for (HttpHeader& h : headers) headers_.push_back(std::move(h));
}

void Reply::count(int status) {
  status_ = status;
  ++metrics_->http_responses[fmt::format("route=\"{}\",status=\"{}\"", route_, status)];
  if (on_status_) on_status_(status);
}

void Reply::send(HttpResponse response) {
  count(response.status);
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  answer_->send(std::move(response));
}

void Reply::json(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  send(std::move(response));
}

void Reply::text(std::string body) {
  HttpResponse response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::move(body);
  send(std::move(response));
}

void Reply::count(const ApiError& error) {
  ++metrics_->refused[fmt::format("code=\"{}\"", error.code)];
}

void Reply::error(const ApiError& error) {
  count(error);
  HttpResponse response = error.response();
  if (error_body_ != nullptr) response.body = error_body_(error, request_id());
  send(std::move(response));
}

void Reply::fail_stream(const ApiError& error, std::string_view events) {
  count(error);
  write(events);
}

void Reply::begin_stream() {
  count(200);
  streaming_ = true;
  answer_->begin_stream(headers_);
}

std::string random_hex(std::size_t bytes) {
  std::string raw(bytes, '\0');
  const auto got = getrandom(raw.data(), raw.size(), 0);
  LATHE_CHECK(got == static_cast<ssize_t>(raw.size()), "getrandom() returned fewer bytes");
  std::string out;
  for (char c : raw) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

}  // namespace lathe
