// The table of routes: it dispatches, checks access, and prints the reference in docs/server.md.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/http/http.h"
#include "server/service/access.h"
#include "server/service/reply.h"

namespace lathe {

class Service;

struct RouteCall {
  Service& service;
  HttpRequest request;
  std::shared_ptr<Reply> reply;
};

struct ServerRoute {
  std::string_view paths;    // separated by blanks; the first names the route in metrics
  std::string_view methods;  // "GET", "POST", "GET POST"; HEAD comes with GET
  RouteAuth auth;
  bool needs_model;
  std::string_view what;
  void (*call)(RouteCall call);
  Reply::ErrorBody error_body = nullptr;  // null: OpenAI's
  std::string_view parameter = {};        // the query's that it knows
};

std::span<const ServerRoute> server_routes();

/// The route with that path, or null; "/x/" is "/x".
const ServerRoute* find_route(std::string_view path);
bool route_takes(const ServerRoute& route, std::string_view method);
/// The first of its paths.
std::string_view route_name(const ServerRoute& route);

/// Whether dispatch() would accept a request's head, so that its body is worth reading. Called from
/// any thread.
bool reads_body(const Service& service, const HttpRequest& request);

/// The form of the errors of the route with that path; null: OpenAI's. Called from any thread.
Reply::ErrorBody error_body(std::string_view path);

/// Calls the route's handler, or rejects the request: 404, 405, 401, 503 while loading.
void dispatch(Service& service, HttpRequest request, std::shared_ptr<Reply> reply);

/// The table as text, a line per route.
std::string describe_routes();

}  // namespace lathe
