#include "server/routes/info_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/json.h"

#include "server/openai/field_readers.h"
#include "server/openai/fields.h"
#include "server/page/page.h"
#include "server/routes/commit.h"
#include "server/routes/tokenize.h"
#include "server/service/service.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

Json model_object(const Service& service, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", service.created()},
          {"owned_by", "lathe"},
          {"root", service.options().model},
          {"parent", nullptr},
          {"max_model_len", service.model().capacity}};
}

constexpr double kMostSeconds = 1e6;

// The seconds of a parameter; 0 if the query has it not.
Result<double, ApiError> query_seconds(std::string_view query, std::string_view name) {
  for (const QueryParameter& p : read_query(query)) {
    if (p.name != name) continue;
    double out = 0;
    const char* const end = p.value.data() + p.value.size();
    const auto read = std::from_chars(p.value.data(), end, out);
    const bool whole = read.ec == std::errc() && read.ptr == end;
    if (!whole || !(out >= 0 && out <= kMostSeconds)) {
      return bad_field(std::string(name), fmt::format("seconds from 0 to {}", kMostSeconds),
                       p.value.empty() ? "nothing" : shown_text(p.value));
    }
    return out;
  }
  return 0;
}

Json token_or_null(const nlohmann::json& config, const char* name) {
  const auto at = config.find(name);
  if (at == config.end()) return nullptr;
  if (at->is_string()) return *at;
  if (at->is_object() && at->contains("content")) return (*at)["content"];
  return nullptr;
}

struct AbortBody {
  std::string rid = {};
  bool all = false;
  std::vector<std::string> ignored = {};  // names of unknown fields
};

Result<AbortBody, ApiError> read_abort(std::string_view text, const FieldLimits& limits) {
  const auto body = parse_body(text);
  if (!body) return body.error();
  AbortBody out;
  if (auto wrong = note_fields(*body, {"rid", "abort_all"}, limits, out.ignored)) return *wrong;
  const Json rid = body->value("rid", Json()), all = body->value("abort_all", Json());
  if (!rid.is_null() && !rid.is_string()) return bad_field("rid", "a string", excerpt(rid));
  if (!all.is_null() && !all.is_boolean()) {
    return bad_field("abort_all", "true or false", excerpt(all));
  }
  out.all = all == true;
  if (!out.all && rid.is_null()) {
    return ApiError{400, "missing_field",
                    "rid: wanted a string, or \"abort_all\": true, got neither", "rid"};
  }
  if (!out.all) out.rid = rid.get<std::string>();
  return out;
}

// Answers with what `make` returns of (body, model, options, stop flag), a RouteAnswer or an error.
template <class Make>
void answer_on_worker(RouteCall c, Make make) {
  Service& service = c.service;
  const std::size_t bytes = c.request.body.size();
  service.work(c.reply, bytes,
               [&service, make, body = std::move(c.request.body), reply = c.reply,
                model = service.shared_model()](const Service::StopFlag& stop) {
                 auto out = std::make_shared<Result<RouteAnswer, ApiError>>(
                     make(body, *model, service.options(), &stop));
                 return [&service, reply, out] {
                   if (!*out) {
                     reply->error(out->error());
                     return;
                   }
                   service.report_ignored((*out)->ignored, *reply);
                   reply->json((*out)->body);
                 };
               });
}

}  // namespace

void models_route(RouteCall c) {
  constexpr std::string_view kList = "/v1/models";
  const auto& names = c.service.options().names;
  std::string_view path = c.request.path;
  if (path.back() == '/') path.remove_suffix(1);
  if (path == kList) {
    Json data = Json::array();
    for (const std::string& name : names) data.push_back(model_object(c.service, name));
    c.reply->json(json_text({{"object", "list"}, {"data", data}}));
    return;
  }
  const std::string asked(path.substr(kList.size() + 1));
  if (std::find(names.begin(), names.end(), asked) == names.end()) {
    c.reply->error({404, "model_not_found",
                    fmt::format("model: wanted {}, got {}", fmt::join(names, " or "), asked), ""});
    return;
  }
  c.reply->json(json_text(model_object(c.service, asked)));
}

void tokenize_route(RouteCall c) { answer_on_worker(std::move(c), tokenize); }

void detokenize_route(RouteCall c) {
  answer_on_worker(std::move(c), [](const std::string& body, const ServedModel& model,
                                    const ServerOptions& options, const Service::StopFlag*) {
    return detokenize(body, model, options);
  });
}

void count_tokens_route(RouteCall c) { answer_on_worker(std::move(c), count_tokens); }

void tokenizer_info_route(RouteCall c) {
  const nlohmann::json& config = c.service.model().tokenizer_config;
  Json out;
  out["tokenizer_class"] = token_or_null(config, "tokenizer_class");
  for (const char* name : {"bos_token", "eos_token", "pad_token"}) {
    out[name] = token_or_null(config, name);
  }
  out["chat_template"] = token_or_null(config, "chat_template");
  out["model_max_length"] = c.service.model().capacity;
  c.reply->json(json_text(out));
}

void health_route(RouteCall c) {
  const std::string_view state = c.service.health();
  Json body{{"status", state}};
  if (state == "loading") body["percent"] = c.service.loaded_percent();
  HttpResponse response;
  response.status = state == "ok" ? 200 : 503;
  response.body = json_text(body);
  if (response.status == 503) response.headers.push_back({"Retry-After", "1"});
  c.reply->send(std::move(response));
}

void ready_route(RouteCall c) {
  const bool ready = c.service.takes_requests() && c.service.health() == "ok";
  HttpResponse response;
  response.status = ready ? 200 : 503;
  response.body = json_text({{"status", ready                        ? "ok"
                                        : c.service.health() == "ok" ? "queue_full"
                                                                     : c.service.health()}});
  c.reply->send(std::move(response));
}

void health_generate_route(RouteCall c) { c.service.probe(20, c.reply); }

void version_route(RouteCall c) {
  const std::string_view commit = built_commit();
  c.reply->json(
      json_text({{"version", LATHE_VERSION}, {"commit", commit.empty() ? Json() : Json(commit)}}));
}

void model_info_route(RouteCall c) {
  const ServedModel& model = c.service.model();
  const GenerationDefaults& g = model.generation;
  Json sampling = Json::object();
  if (g.temperature) sampling["temperature"] = *g.temperature;
  if (g.top_p) sampling["top_p"] = *g.top_p;
  if (g.top_k) sampling["top_k"] = *g.top_k;
  if (g.min_p) sampling["min_p"] = *g.min_p;
  if (g.repetition_penalty) sampling["repetition_penalty"] = *g.repetition_penalty;
  const std::string& folder = c.service.options().model;
  c.reply->json(json_text(
      {{"model_path", folder},
       {"tokenizer_path", folder},
       {"served_model_name", c.service.options().names[0]},
       {"is_generation", true},
       {"preferred_sampling_params", sampling.empty() ? Json(nullptr) : sampling},
       {"weight_version", "default"},
       {"model_type", model.model_type},
       {"architectures", Json::array({model.architecture})},
       {"tool_call_parser",
        model.tools == ToolFormat::none ? Json(nullptr) : Json(name(model.tools))},
       {"reasoning_parser",
        model.reasoning == ReasoningFormat::none ? Json(nullptr) : Json(name(model.reasoning))},
       {"load_format", c.service.options().effective.value("load_format", "auto")},
       {"has_image_understanding", false},
       {"has_audio_understanding", false}}));
}

void server_info_route(RouteCall c) {
  const ServedModel& model = c.service.model();
  Json out = c.service.options().effective;
  out["version"] = LATHE_VERSION;
  out["startup_time"] = c.service.created();
  out["max_total_num_tokens"] = model.cache_tokens;
  out["max_req_input_len"] = model.capacity;
  out["internal_states"] =
      Json::array({{{"last_gen_throughput", c.service.generation_rate()},
                    {"avg_spec_accept_length", c.service.stats().drafts.acceptance_length()},
                    {"memory_usage",
                     {{"weight", static_cast<double>(model.weight_bytes) / 1e9},
                      {"kvcache", static_cast<double>(model.cache_bytes) / 1e9},
                      {"token_capacity", model.cache_tokens}}}}});
  out["plan"] = model.plan_line;
  c.reply->json(json_text(out));
}

void metrics_route(RouteCall c) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = c.service.metrics_page();
  c.reply->send(std::move(response));
}

void plan_route(RouteCall c) { c.reply->json(json_text(c.service.model().plan)); }

void page_route(RouteCall c) {
  if (c.service.options().no_ui) {
    c.reply->error({404, "route_not_found", "path: wanted another one, got the page; --no-ui", ""});
    return;
  }
  c.reply->send(page_response(c.request));
}

void flush_cache_route(RouteCall c) {
  if (const auto error = check_page_get(c.request)) {
    c.reply->error(*error);
    return;
  }
  if (c.request.method == "HEAD") {  // must change nothing
    c.reply->error({405, "method_not_allowed", "method: wanted POST, got HEAD", ""});
    return;
  }
  const auto seconds = query_seconds(c.request.query, "timeout");
  if (!seconds) {
    c.reply->error(seconds.error());
    return;
  }
  c.service.flush_cache(*seconds, c.reply);
}

void abort_route(RouteCall c) {
  Service& service = c.service;
  const std::size_t bytes = c.request.body.size();
  service.work(
      c.reply, bytes,
      [&service, text = std::move(c.request.body), reply = c.reply](const Service::StopFlag&) {
        auto which = std::make_shared<Result<AbortBody, ApiError>>(
            read_abort(text, service.options().fields));
        return [&service, reply, which] {
          if (!*which) {
            reply->error(which->error());
            return;
          }
          service.report_ignored((*which)->ignored, *reply);
          if (const auto error = service.abort((*which)->rid, (*which)->all, reply->caller())) {
            reply->error(*error);
          } else {
            reply->json("{}");
          }
        };
      });
}

}  // namespace lathe
