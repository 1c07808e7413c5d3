// The page: one HTML file with its style and script, embedded when the server is built.
#pragma once

#include <string_view>

#include "server/http/http.h"

namespace lathe {

/// Made from page.html by tools/embed_page.py.
struct PageData {
  std::string_view html;
  std::string_view etag;
  std::string_view script_hash;  // SHA-256 in base64, as a Content-Security-Policy names it
  std::string_view style_hash;
};
extern const PageData kPage;

/// The page, or 304 where the request has its ETag. Its headers let it load nothing but what it
/// holds, and talk only to this server.
HttpResponse page_response(const HttpRequest& request);

}  // namespace lathe
