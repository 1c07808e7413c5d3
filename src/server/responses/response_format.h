// Answers of /v1/responses.
#pragma once

#include <memory>

#include "server/openai/answer.h"

namespace lathe::responses_api {

/// `request` and `head` outlive the format.
std::unique_ptr<AnswerFormat> make_format(const ApiRequest& request, const AnswerHead& head);

}  // namespace lathe::responses_api
