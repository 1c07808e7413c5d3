#include "server/service/protocol.h"

#include <array>
#include <utility>

#include "server/messages/message_format.h"
#include "server/messages/message_request.h"
#include "server/responses/response_format.h"
#include "server/responses/response_request.h"

namespace lathe {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

using Renames = std::array<std::pair<std::string_view, std::string_view>, 5>;
constexpr Renames kOfResponses = {{{".function.parameters", ".parameters"},
                                   {".function", ""},
                                   {"messages", "input"},
                                   {"max_tokens", "max_output_tokens"},
                                   {"reasoning_effort", "reasoning.effort"}}};
constexpr Renames kOfMessages = {{{".function.parameters", ".input_schema"},
                                  {".function", ""},
                                  {"reasoning_effort", "output_config.effort"}}};

}  // namespace

Result<ApiRequest, ApiError> read_request(ApiRoute route, std::string_view body,
                                          const FieldLimits& limits) {
  switch (route) {
    case ApiRoute::responses:
      return responses_api::parse_request(body, limits);
    case ApiRoute::messages:
      return anthropic::parse_request(body, limits);
    default:
      return parse_request(route, body, limits);
  }
}

ApiError own_names(ApiRoute route, ApiError error) {
  if (route != ApiRoute::responses && route != ApiRoute::messages) return error;
  std::string renamed = error.param;
  for (const auto& [from, to] : route == ApiRoute::responses ? kOfResponses : kOfMessages) {
    if (!from.empty()) replace_all(renamed, from, to);
  }
  if (renamed == error.param) return error;
  replace_all(error.message, error.param, renamed);
  error.param = std::move(renamed);
  return error;
}

std::unique_ptr<AnswerFormat> make_format(const ApiRequest& request, const AnswerHead& head) {
  switch (request.route) {
    case ApiRoute::chat:
      return make_chat_format(request, head);
    case ApiRoute::completions:
      return make_completion_format(request, head);
    case ApiRoute::generate:
      return make_generate_format(request, head);
    case ApiRoute::responses:
      return responses_api::make_format(request, head);
    case ApiRoute::messages:
      return anthropic::make_format(request, head);
  }
  return nullptr;
}

std::string_view id_prefix(ApiRoute route) {
  switch (route) {
    case ApiRoute::chat:
      return "chatcmpl-";
    case ApiRoute::completions:
      return "cmpl-";
    case ApiRoute::generate:
      return "";
    case ApiRoute::responses:
      return "resp_";
    case ApiRoute::messages:
      return "msg_";
  }
  return "";
}

std::string describe_all_fields() {
  const RouteFields more[] = {{'R', "responses", responses_api::fields()},
                              {'M', "messages", anthropic::fields()}};
  return describe_fields(more);
}

}  // namespace lathe
