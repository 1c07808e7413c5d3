// Routes for information and administration.
#pragma once

#include "server/routes/routes.h"

namespace lathe {

void models_route(RouteCall call);
void tokenize_route(RouteCall call);
void detokenize_route(RouteCall call);
void count_tokens_route(RouteCall call);
void tokenizer_info_route(RouteCall call);
void health_route(RouteCall call);
void ready_route(RouteCall call);
void health_generate_route(RouteCall call);
void version_route(RouteCall call);
void model_info_route(RouteCall call);
void server_info_route(RouteCall call);
void metrics_route(RouteCall call);
void plan_route(RouteCall call);
void page_route(RouteCall call);
void flush_cache_route(RouteCall call);
void abort_route(RouteCall call);

}  // namespace lathe
