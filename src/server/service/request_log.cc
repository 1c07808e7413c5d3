#include "server/service/request_log.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/print.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

// Prints "request a 1 b 2"; client text is printed as JSON, so it stays on one line.
void print_line(const ServerOptions& options, std::string_view event, const Json& fields) {
  if (options.log_json) {
    Json line{{"event", event}};
    line.update(fields);
    print_err(fmt::format("{}\n", json_text(line)));
    return;
  }
  std::string line = fmt::format("{:9}", event);
  for (const auto& [name, value] : fields.items()) {
    const bool plain =
        value.is_string() && !value.get_ref<const std::string&>().empty() &&
        value.get_ref<const std::string&>().find_first_of(" \n\"") == std::string::npos;
    line += fmt::format(" {} {}", name, plain ? value.get<std::string>() : json_text(value));
  }
  print_err(fmt::format("{}\n", line));
}

double rounded_ms(double seconds) { return static_cast<double>(std::lround(seconds * 1e4)) / 10; }

Json parameters_of(const LiveAnswer& answer) {
  const ApiRequest& api = answer.api();
  const SamplingParams& p = answer.sampling();
  return {{"stream", api.stream},
          {"n", api.n},
          {"max_tokens", p.max_tokens.value_or(0)},
          {"temperature", p.temperature},
          {"top_p", p.top_p},
          {"top_k", p.top_k},
          {"min_p", p.min_p},
          {"repetition_penalty", p.repetition_penalty},
          {"frequency_penalty", p.frequency_penalty},
          {"presence_penalty", p.presence_penalty},
          {"seed", p.seed ? Json(static_cast<std::int64_t>(*p.seed)) : Json()},
          {"stops", api.params(0).stop.size()},
          {"logprobs", api.logprobs},
          {"tools", api.tools.is_array() ? api.tools.size() : 0}};
}

Json prompts_of(const ApiRequest& api) {
  if (api.is_chat()) return api.messages;
  Json out = Json::array();
  for (const PromptInput& p : api.prompts) out.push_back(p.is_text ? Json(p.text) : Json());
  return out;
}

Json texts_of(const LiveAnswer& answer) {
  Json out = Json::array();
  for (const Choice& c : answer.all_choices()) out.push_back(c.reasoning + c.text);
  return out;
}

}  // namespace

void log_request(const ServerOptions& options, LiveAnswer& answer, double seconds,
                 std::string_view finish) {
  if (options.log_requests == 0) return;
  Json line{{"id", answer.head().id},
            {"client_id", answer.reply().request_id()},
            {"in", answer.prompt_tokens()},
            {"cached", answer.cached_tokens()},
            {"out", answer.completion_tokens()},
            {"queue_ms", rounded_ms(answer.times().started)},
            {"first_ms", rounded_ms(answer.times().first_token)},
            {"total_ms", rounded_ms(seconds)},
            {"finish", finish},
            {"status", answer.reply().status()}};
  if (options.log_requests >= 2) line["parameters"] = parameters_of(answer);
  if (options.log_requests >= 3) {
    line["prompts"] = prompts_of(answer.api());
    line["answers"] = texts_of(answer);
  }
  print_line(options, "request", line);
}

void log_response(const ServerOptions& options, std::string_view method, std::string_view path,
                  std::string_view id, int status, double seconds) {
  print_line(options, "response",
             {{"method", method.substr(0, 20)},
              {"path", path.substr(0, 200)},
              {"id", id},
              {"status", status},
              {"ms", rounded_ms(seconds)}});
}

void log_decode(const ServerOptions& options, const EngineNews& news) {
  const double usage = news.stats.total_pages > 0 ? static_cast<double>(news.stats.held_pages) /
                                                        static_cast<double>(news.stats.total_pages)
                                                  : 0.0;
  const double rate = news.seconds > 0 ? static_cast<double>(news.tokens) / news.seconds : 0.0;
  const DraftStats& drafts = news.stats.drafts;
  if (options.log_json) {
    Json line{{"running", news.stats.running},
              {"token_usage", usage},
              {"gen_throughput", rate},
              {"queued", news.stats.waiting}};
    if (drafts.checks > 0) line["drafts"] = to_json(drafts);
    print_line(options, "decode", line);
    return;
  }
  const std::string accepted =
      drafts.checks == 0 ? ""
                         : fmt::format("accept len: {:.2f}, accept rate: {:.2f}, ",
                                       drafts.acceptance_length(), drafts.acceptance_rate());
  print_err(fmt::format(
      "Decode batch. #running-req: {}, token usage: {:.2f}, {}gen throughput (token/s): "
      "{:.2f}, #queue-req: {}\n",
      news.stats.running, usage, accepted, rate, news.stats.waiting));
}

}  // namespace lathe
