#include "server/routes/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/messages/message_error.h"
#include "server/openai/fields.h"
#include "server/routes/info_routes.h"
#include "server/service/service.h"

namespace lathe {
namespace {

void chat(RouteCall c) { c.service.generate(ApiRoute::chat, std::move(c.request.body), c.reply); }
void completions(RouteCall c) {
  c.service.generate(ApiRoute::completions, std::move(c.request.body), c.reply);
}
void generate(RouteCall c) {
  c.service.generate(ApiRoute::generate, std::move(c.request.body), c.reply);
}

void create_response(RouteCall c) {
  c.service.generate(ApiRoute::responses, std::move(c.request.body), c.reply);
}
void create_message(RouteCall c) {
  c.service.generate(ApiRoute::messages, std::move(c.request.body), c.reply);
}

constexpr ServerRoute kRoutes[] = {
    {"/v1/chat/completions", "POST", RouteAuth::key, true, "chat completion", chat},
    {"/v1/completions", "POST", RouteAuth::key, true, "text completion", completions},
    {"/v1/responses", "POST", RouteAuth::key, true, "a response in OpenAI's newer shape",
     create_response},
    {"/v1/messages", "POST", RouteAuth::key, true, "a message in Anthropic's shape", create_message,
     anthropic::error_body, "beta"},
    {"/v1/messages/count_tokens", "POST", RouteAuth::key, true, "the tokens of such a request",
     count_tokens_route, anthropic::error_body, "beta"},
    {"/generate", "POST PUT", RouteAuth::key, true, "text completion in SGLang's shape", generate},
    {"/v1/models /v1/models/{id}", "GET", RouteAuth::key, true, "the model's names", models_route},
    {"/tokenize /v1/tokenize", "POST", RouteAuth::key, true, "prompt or messages to tokens",
     tokenize_route},
    {"/detokenize /v1/detokenize", "POST", RouteAuth::key, true, "tokens to text",
     detokenize_route},
    {"/tokenizer_info", "GET", RouteAuth::key, true, "special tokens, chat template",
     tokenizer_info_route},
    {"/health /ping", "GET", RouteAuth::open, false,
     "200, or 503 loading, draining, stuck or failed", health_route},
    {"/ready", "GET", RouteAuth::open, false, "200 if a request would be accepted now",
     ready_route},
    {"/health_generate", "GET", RouteAuth::key, true, "a token through the queue, within 20 s",
     health_generate_route},
    {"/version", "GET", RouteAuth::open, false, "version and commit of the server", version_route},
    {"/model_info /get_model_info", "GET", RouteAuth::key, true, "facts about the served model",
     model_info_route},
    {"/server_info /get_server_info", "GET", RouteAuth::key, true, "effective flags, load, plan",
     server_info_route},
    {"/metrics", "GET", RouteAuth::key, true, "Prometheus' text", metrics_route},
    {"/plan", "GET", RouteAuth::key, true,
     "plan, matrix and reasons as JSON; as a page for Accept: text/html", plan_route},
    {"/ /ui", "GET", RouteAuth::open, false, "the page", page_route},
    {"/flush_cache /reset_prefix_cache", "GET POST", RouteAuth::admin, true,
     "empties the prefix cache; ?timeout=S waits for idle", flush_cache_route, nullptr, "timeout"},
    {"/abort_request", "POST", RouteAuth::key, true,
     R"(ends the caller's {"rid"}; the admin's: anyone's, or {"abort_all": true})", abort_route},
};

// Calls `use` with each word of `text` until it returns true.
template <class Use>
bool any_word(std::string_view text, const Use& use) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (use(text.substr(0, end))) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

bool path_is(std::string_view pattern, std::string_view path) {
  const std::size_t brace = pattern.find('{');
  if (brace == std::string_view::npos) return pattern == path;
  return path.size() > brace && path.starts_with(pattern.substr(0, brace));
}

ApiError no_route(const HttpRequest& request) {
  std::string all;
  for (const ServerRoute& r : kRoutes) all += " " + std::string(route_name(r));
  return {404, "route_not_found",
          fmt::format("path: wanted one of{}, got {}", all, request.path.substr(0, 200)), ""};
}

std::string allowed_methods(const ServerRoute& route) {
  std::string out;
  any_word(route.methods, [&](std::string_view m) {
    if (!out.empty()) out += ", ";
    out += m;
    if (m == "GET") out += ", HEAD";
    return false;
  });
  return out;
}

void wrong_method(const ServerRoute& route, const HttpRequest& request, Reply& reply) {
  const std::string allowed = allowed_methods(route);
  reply.add_headers({{"Allow", allowed}});
  reply.error({405, "method_not_allowed",
               fmt::format("method: wanted {}, got {}", allowed, request.method.substr(0, 20)),
               ""});
}

// Answers CORS preflight requests from allowed origins.
bool answer_preflight(const AccessRules& access, const ServerRoute& route,
                      const HttpRequest& request, Reply& reply) {
  HttpResponse response;
  response.status = 204;
  response.headers = preflight_headers(access, request, allowed_methods(route));
  if (response.headers.empty()) return false;
  reply.send(std::move(response));
  return true;
}

// A browser that opens /plan gets the page, which then requests the plan with the key.
bool wants_page(const ServerRoute& route, const HttpRequest& request, const Service& service) {
  const std::string* accept = request.header("accept");
  return route_name(route) == "/plan" && !service.options().no_ui && accept != nullptr &&
         accept->find("text/html") != std::string::npos;
}

bool is_json(const HttpRequest& request) {
  const std::string* type = request.header("content-type");
  if (type == nullptr) return false;
  std::string media = type->substr(0, type->find(';'));
  media.erase(std::remove(media.begin(), media.end(), ' '), media.end());
  std::transform(media.begin(), media.end(), media.begin(),
                 [](unsigned char ch) { return static_cast<char>(std::tolower(ch)); });
  return media == "application/json";
}

// Refuses a parameter that stands twice, of which one would be lost; and unknown ones where they
// might have been meant for a parameter that acts, and with --strict-fields. Elsewhere a header
// names these.
std::optional<ApiError> check_query(Service& service, const ServerRoute& route,
                                    const HttpRequest& request, Reply& reply) {
  std::vector<std::string> unknown;
  bool known = false;
  for (const QueryParameter& p : read_query(request.query)) {
    if (p.name != route.parameter || route.parameter.empty()) {
      unknown.push_back("?" + (p.name.empty() ? "\"\"" : p.name));
    } else if (std::exchange(known, true)) {
      return bad_field("?" + p.name, "it once", "it twice");
    }
  }
  if (unknown.empty()) return std::nullopt;
  const bool strict = service.options().fields.strict && route.auth != RouteAuth::open;
  if (strict || route.call == flush_cache_route) {
    return bad_field(shown_path(unknown[0]),
                     route.parameter.empty() ? "no query" : fmt::format("?{}=", route.parameter),
                     "an unknown name");
  }
  service.report_ignored(unknown, reply);
  return std::nullopt;
}

// What an allowed method and origin leave to check in a request's head. Called from any thread.
std::optional<ApiError> refuse_head(const Service& service, const ServerRoute& route,
                                    const HttpRequest& request) {
  const bool open_metrics = service.options().open_metrics && route_name(route) == "/metrics";
  if (auto error =
          check_key(service.access(), open_metrics ? RouteAuth::open : route.auth, request)) {
    return error;
  }
  return std::nullopt;
}

}  // namespace

std::span<const ServerRoute> server_routes() { return kRoutes; }

const ServerRoute* find_route(std::string_view path) {
  if (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  for (const ServerRoute& route : kRoutes) {
    if (any_word(route.paths, [&](std::string_view p) { return path_is(p, path); })) return &route;
  }
  return nullptr;
}

bool route_takes(const ServerRoute& route, std::string_view method) {
  if (method == "HEAD") method = "GET";
  return any_word(route.methods, [&](std::string_view m) { return m == method; });
}

std::string_view route_name(const ServerRoute& route) {
  return route.paths.substr(0, route.paths.find(' '));
}

bool reads_body(const Service& service, const HttpRequest& request) {
  const ServerRoute* route = find_route(request.path);
  return route != nullptr && route_takes(*route, request.method) &&
         !check_origin(service.access(), request) && !refuse_head(service, *route, request);
}

Reply::ErrorBody error_body(std::string_view path) {
  const ServerRoute* route = find_route(path);
  if (route != nullptr) return route->error_body;
  // Anthropic's clients ask for batches there.
  return path.starts_with("/v1/messages/") ? anthropic::error_body : nullptr;
}

void dispatch(Service& service, HttpRequest request, std::shared_ptr<Reply> reply) {
  const AccessRules& access = service.access();
  reply->set_error_body(error_body(request.path));
  reply->add_headers(cors_headers(access, request));
  if (const auto error = check_origin(access, request)) {
    reply->error(*error);
    return;
  }
  const ServerRoute* route = find_route(request.path);
  if (route == nullptr) {
    reply->error(no_route(request));
    return;
  }
  reply->set_route(route_name(*route));
  if (answer_preflight(access, *route, request, *reply)) return;
  if (!route_takes(*route, request.method)) {
    wrong_method(*route, request, *reply);
    return;
  }
  if (wants_page(*route, request, service)) {
    page_route({service, std::move(request), std::move(reply)});
    return;
  }
  if (const auto error = refuse_head(service, *route, request)) {
    reply->error(*error);
    return;
  }
  const bool has_body = request.method == "POST" || request.method == "PUT";
  if (has_body && route->auth == RouteAuth::key && !is_json(request)) {
    const std::string* type = request.header("content-type");
    reply->error({415, "content_type",
                  fmt::format("Content-Type: wanted application/json, got {}; curl -H "
                              "'Content-Type: application/json'",
                              type == nullptr ? "none" : shown_text(*type)),
                  ""});
    return;
  }
  if (route->needs_model && service.state() == ServiceState::loading) {
    reply->error({503, "loading",
                  fmt::format("the model is loading, {} % of its weights are there",
                              service.loaded_percent()),
                  ""});
    return;
  }
  if (const auto error = check_query(service, *route, request, *reply)) {
    reply->error(*error);
    return;
  }
  reply->set_caller(find_caller(access, request));
  route->call({service, std::move(request), std::move(reply)});
}

std::string describe_routes() {
  std::string out;
  for (const ServerRoute& r : kRoutes) {
    out += fmt::format("{:34} {:9} {:6} {}\n", r.paths, r.methods, name(r.auth), r.what);
  }
  return out;
}

}  // namespace lathe
