#include "server/page/page.h"

#include <string>

namespace lathe {

HttpResponse page_response(const HttpRequest& request) {
  HttpResponse out;
  out.content_type = "text/html; charset=utf-8";
  out.headers = {{"Content-Security-Policy",
                  "default-src 'none'; script-src 'sha256-" + std::string(kPage.script_hash) +
                      "'; style-src 'sha256-" + std::string(kPage.style_hash) +
                      "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                      "frame-ancestors 'none'"},
                 {"X-Content-Type-Options", "nosniff"},
                 {"Referrer-Policy", "no-referrer"},
                 {"Cache-Control", "no-cache"},
                 {"ETag", std::string(kPage.etag)}};
  const std::string* known = request.header("if-none-match");
  if (known != nullptr && *known == kPage.etag) {
    out.status = 304;
    return out;
  }
  out.body = kPage.html;
  return out;
}

}  // namespace lathe
