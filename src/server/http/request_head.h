// What the parser leaves of a request's head: its target, its Host and its version.
#pragma once

#include <boost/system/error_code.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace lathe {

inline constexpr std::string_view kLineEnd = "\r\n";

/// A name, an IPv4 address or an IPv6 address in brackets, and a port: RFC 3986, without escapes.
/// Also nothing, as RFC 9112, 3.2 allows.
bool is_host(std::string_view text);

/// Splits a target into path and query, and decodes the path. The host of an absolute URI replaces
/// the header's, as RFC 9112, 3.2.2 asks. Returns what is wrong with the target, or nothing.
std::string read_target(std::string_view target, HttpRequest& out);

/// What the head has said of its body before the parser stopped.
struct Framing {
  bool chunked = false;
  std::optional<std::uint64_t> length;  // Content-Length's
};

/// The message about bytes of a head that the parser refused with `error`; `in` begins with their
/// line.
std::string describe_fault(std::string_view in, const boost::system::error_code& error,
                           const Framing& framing);
/// The same of a chunked body: `in` begins with a chunk, or the last one and the trailer.
std::string describe_chunk_fault(std::string_view in, const boost::system::error_code& error);

/// Whether a line of a head, of a chunk's or of a trailer ends in LF without CR. RFC 9112, 2.2 lets
/// a server take it for an end of a head's line. This one does not, and no server may in a chunk's
/// line (7.1): a proxy in front that reads it otherwise would see other requests.
bool has_lone_line_feed(std::string_view lines);
inline constexpr std::string_view kLoneLineFeedInHead =
    "headers: wanted CRLF behind each, got a line feed alone";
inline constexpr std::string_view kLoneLineFeedInChunk =
    "chunk: wanted CRLF behind its size, its data and the trailer's lines, got a line feed alone";

/// RFC 9110, 2.5: a request of a version HTTP/1.x above 1.1 is read as one of 1.1, so the version
/// in `in` is changed. Returns false if the request line has no end yet. Its version may be there,
/// and the parser judges that.
bool read_version(std::string& in);

}  // namespace lathe
