#include "server/service/protocol.h"

#include <array>
#include <utility>

#include "server/messages/message_format.h"
#include "server/messages/message_request.h"
#include "server/responses/response_format.h"
#include "server/responses/response_request.h"

namespace lathe {
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
