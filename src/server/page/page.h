// The page: one HTML file with style and script, embedded at build time.
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

/// The page, or 304 if the request has its ETag. Its Content-Security-Policy allows only its own
/// style and script, and requests to this server alone.
HttpResponse page_response(const HttpRequest& request);

}  // namespace lathe
