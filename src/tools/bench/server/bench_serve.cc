#include "tools/bench/server/bench_serve.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <fstream>

#include "base/json.h"
#include "io/text/json_text.h"
#include "io/text/quote.h"
#include "tools/bench/server/serve_figures.h"
#include "tools/bench/server/serve_picture.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

// A number above 0; 0 for "inf".
Result<double> read_rate(const std::string& text) {
  if (text == "inf") return 0.0;
  char* end = nullptr;
  const double rate = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0' && rate >= 1e-3 && rate <= 1e6) return rate;
  return Error{ErrorCode::invalid_argument, "--request-rate",
               "0.001 to 1000000 requests a second, or inf", quote(text), ""};
}

// The first model that the server lists.
Result<std::string> find_model(const ServeTarget& target) {
  const auto text = ask_server(target, "GET", "/v1/models", "");
  if (!text) return text.error();
  const Json models = read_json<Json>(*text);
  const Json data = models.is_object() ? models.value("data", Json()) : Json();
  if (data.is_array() && !data.empty() && data[0].is_object() && data[0].contains("id") &&
      data[0]["id"].is_string()) {
    return data[0]["id"].get<std::string>();
  }
  return Error{ErrorCode::malformed, "--model", "a name, or a server that lists its models",
               "none in the answer to /v1/models", ""};
}

struct ServePlan {
  ServeTarget target;
  std::string path;
  double rate = 0;  // 0: all at once
  ServeLimits limits;
  ServePromptOptions prompts;
};

Result<ServePlan> plan_load(const BenchServeOptions& options) {
  ServePlan out;
  auto target = ServeTarget::parse(options.base_url);
  if (!target) return target.error();
  out.target = std::move(*target);
  const char* key = std::getenv("OPENAI_API_KEY");
  out.target.api_key = !options.api_key.empty() ? options.api_key : key != nullptr ? key : "";
  const auto rate = read_rate(options.request_rate);
  if (!rate) return rate.error();
  out.rate = *rate;
  auto limits = ServeLimits::parse(options.goodput);
  if (!limits) return limits.error();
  out.limits = *limits;
  out.prompts = options.prompts;
  const bool messages = options.backend.empty() && options.prompts.dataset == "tasks";
  out.prompts.chat = messages || options.backend == "openai-chat";
  out.path = !options.endpoint.empty() ? options.endpoint
             : out.prompts.chat        ? "/v1/chat/completions"
                                       : "/v1/completions";
  if (!options.extra_body.empty()) {
    auto extra = parse_json(options.extra_body, "--extra-body");
    if (!extra) return extra.error();
    out.prompts.extra = std::move(*extra);
    if (!out.prompts.extra.is_object()) {
      return Error{ErrorCode::invalid_argument, "--extra-body", "a JSON object",
                   quote(options.extra_body), ""};
    }
  }
  if (out.prompts.dataset == "custom" && out.prompts.path.empty()) {
    return Error{ErrorCode::invalid_argument, "--dataset-path", "a file, for --dataset-name custom",
                 "none", ""};
  }
  return out;
}

// Waits for the server, and asks it for its model where no flag names one.
Result<void> reach_server(const BenchServeOptions& options, ServePlan& plan) {
  const auto tell = [&](const std::string& got) {
    print_err(fmt::format("waiting at most {} s for {}: {}\n", options.ready_seconds,
                          options.base_url, got));
  };
  if (options.ready_seconds > 0) {
    const auto last = wait_for_server(plan.target, options.ready_seconds, tell);
    if (last) {
      return Error{ErrorCode::io, "--ready-check-timeout-sec",
                   fmt::format("a server that is ready at {} within {} s", options.base_url,
                               options.ready_seconds),
                   *last, "more seconds, or another --base-url"};
    }
  }
  if (!plan.prompts.model.empty()) return {};
  auto model = find_model(plan.target);
  if (!model) return model.error();
  plan.prompts.model = std::move(*model);
  return {};
}

Json settings_json(const BenchServeOptions& options, const ServePlan& plan) {
  return {{"date", fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)))},
          {"backend", plan.prompts.chat ? "openai-chat" : "openai"},
          {"base_url", options.base_url},
          {"endpoint", plan.path},
          {"model_id", plan.prompts.model},
          {"tokenizer_id", plan.prompts.tokenizer.empty() ? Json() : Json(plan.prompts.tokenizer)},
          {"dataset_name", plan.prompts.dataset},
          {"num_prompts", plan.prompts.prompts},
          {"request_rate", plan.rate > 0 ? Json(plan.rate) : Json("inf")},
          {"burstiness", options.burstiness},
          {"max_concurrency", options.max_concurrency > 0 ? Json(options.max_concurrency) : Json()},
          {"goodput", options.goodput}};
}

std::string title_of(const BenchServeOptions& options, const ServePlan& plan) {
  std::string out = fmt::format("{}: {} requests, {}", plan.prompts.model, plan.prompts.prompts,
                                plan.prompts.dataset);
  out += plan.rate > 0 ? fmt::format(", {:g} a second", plan.rate) : ", as many as may run";
  if (options.max_concurrency > 0)
    out += fmt::format(", at most {} at once", options.max_concurrency);
  return out;
}

// The first of the requests, before the measurement; a failure ends the command.
Result<void> warm_up(const BenchServeOptions& options, const ServePlan& plan,
                     const std::vector<ServeRequest>& requests) {
  // The first shows whether the server accepts such requests before there is a load.
  const auto n = static_cast<std::size_t>(std::max<std::int64_t>(1, options.warmups));
  std::vector<ServeRequest> first(
      requests.begin(),
      requests.begin() + static_cast<std::ptrdiff_t>(std::min(n, requests.size())));
  for (ServeRequest& r : first) r.due = 0;
  for (const ServeRecord& r : send_requests(plan.target, plan.path, first, 0, [](std::size_t) {})) {
    if (r.error.empty()) continue;
    return Error{ErrorCode::io, "--base-url", "an answer to a request like those to come", r.error,
                 ""};
  }
  return {};
}

}  // namespace

int bench_serve_command(const BenchServeOptions& options) {
  auto plan = plan_load(options);
  if (!plan) return refuse(plan.error());
  std::ofstream picture;
  if (!options.picture.empty()) {
    picture.open(options.picture);  // before minutes of work
    if (!picture) {
      return refuse({ErrorCode::io, "--svg", "a file that can be written", options.picture, ""});
    }
  }
  if (const auto ok = reach_server(options, *plan); !ok) return refuse(ok.error());
  auto load = make_serve_load(plan->prompts);
  if (!load) return refuse(load.error());
  if (const auto ok = warm_up(options, *plan, load->requests); !ok) return refuse(ok.error());
  set_due_times(load->requests, plan->rate, options.burstiness, plan->prompts.seed);
  const std::size_t all = load->requests.size();
  const auto records = send_requests(
      plan->target, plan->path, load->requests, options.max_concurrency,
      [&](std::size_t ended) { print_err(fmt::format("\r{} of {} requests", ended, all)); });
  print_err("\n");
  const ServeFigures figures(records, *load, plan->limits);
  if (options.json) {
    Json out = settings_json(options, *plan);
    out.update(figures_json(figures, plan->limits, records, options.detailed));
    print_out(json_text(out, 2) + "\n");
  } else {
    print_out(figures_text(figures, plan->limits));
  }
  for (const ServeRecord& r : records) {
    if (r.error.empty()) continue;
    print_err("a request failed: " + r.error + "\n");
    break;
  }
  if (!options.picture.empty()) {
    picture << serve_picture(title_of(options, *plan), figures);
    if (!picture.flush()) {
      return refuse({ErrorCode::io, "--svg", "room for the picture", options.picture, ""});
    }
  }
  return figures.failed == 0 ? kExitOk : kExitFailure;
}

}  // namespace lathe
