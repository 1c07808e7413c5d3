// Reply: sends a request's answer with what all answers share: ids, CORS headers, metrics.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http.h"
#include "server/metrics/metrics.h"
#include "server/openai/api_error.h"
#include "server/service/access.h"

namespace lathe {

class Reply {
 public:
  /// `metrics` outlives it.
  Reply(std::shared_ptr<HttpAnswer> answer, std::string request_id, Metrics& metrics)
      : answer_(std::move(answer)), metrics_(&metrics) {
    headers_.push_back({"X-Request-Id", std::move(request_id)});
  }

  const std::string& request_id() const { return headers_.front().value; }
  /// Names the route in metrics; a static string.
  void set_route(std::string_view route) { route_ = route; }
  std::string_view route() const { return route_; }
  void set_caller(Caller caller) { caller_ = caller; }
  const Caller& caller() const { return caller_; }
  void add_headers(std::vector<HttpHeader> headers);

  void send(HttpResponse response);
  void json(std::string body);
  void text(std::string body);
  /// Precondition: no stream has begun.
  void error(const ApiError& error);
  /// The form of the bodies of errors; without it OpenAI's.
  using ErrorBody = std::string (*)(const ApiError& error, std::string_view request_id);
  void set_error_body(ErrorBody body) { error_body_ = body; }

  void begin_stream();
  bool streaming() const { return streaming_; }
  void write(std::string_view chunk) { answer_->write(chunk); }
  void end_stream() { answer_->end_stream(); }
  /// Writes `events`, the last of which tells the error.
  void fail_stream(const ApiError& error, std::string_view events);

  bool gone() const { return answer_->gone(); }
  void on_gone(std::function<void(ClientEnd)> call) { answer_->on_gone(std::move(call)); }
  /// `call` gets the status when it is sent.
  void on_status(std::function<void(int)> call) { on_status_ = std::move(call); }
  std::size_t unsent() const { return answer_->unsent(); }
  int status() const { return status_; }

 private:
  void count(int status);
  void count(const ApiError& error);

  std::shared_ptr<HttpAnswer> answer_;
  Metrics* metrics_;
  std::string_view route_ = "other";
  Caller caller_;
  ErrorBody error_body_ = nullptr;
  std::vector<HttpHeader> headers_;
  bool streaming_ = false;
  int status_ = 0;
  std::function<void(int)> on_status_;
};

/// `bytes` bytes from the kernel's random source, in hex.
std::string random_hex(std::size_t bytes);

}  // namespace lathe
