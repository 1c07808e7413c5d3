#include "server/grammar/schema/formats.h"

#include <utility>

namespace lathe::grammar {
namespace {

#define LATHE_DATE                                                                         \
  "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)" \
  "|02-(0[1-9]|1[0-9]|2[0-8]))|"                                                           \
  "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
// RFC 3339, without leap seconds.
#define LATHE_TIME \
  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LATHE_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define LATHE_LABEL_61 "[A-Za-z0-9]([A-Za-z0-9-]{0,59}[A-Za-z0-9])?"
#define LATHE_LABEL_46 "[A-Za-z0-9]([A-Za-z0-9-]{0,44}[A-Za-z0-9])?"
#define LATHE_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

#define LATHE_HEX4 "[0-9a-fA-F]{1,4}"
// A part of a URI with a scheme (RFC 3986), without checks of its structure.
#define LATHE_URI_CHAR "([A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})"

// Names have at most 253 characters (RFC 1035), addresses 254 (RFC 5321), which labels bound here.
constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", LATHE_DATE},
    {"time", LATHE_TIME},
    {"date-time", LATHE_DATE "T" LATHE_TIME},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"ipv4", LATHE_BYTE "(\\." LATHE_BYTE "){3}"},
    {"ipv6", "(" LATHE_HEX4 ":){7}" LATHE_HEX4 "|::|(" LATHE_HEX4 ":){1,7}:|:(:" LATHE_HEX4
             "){1,7}|(" LATHE_HEX4 ":){6}:" LATHE_HEX4 "|(" LATHE_HEX4 ":){5}(:" LATHE_HEX4
             "){1,2}|(" LATHE_HEX4 ":){4}(:" LATHE_HEX4 "){1,3}|(" LATHE_HEX4 ":){3}(:" LATHE_HEX4
             "){1,4}|(" LATHE_HEX4 ":){2}(:" LATHE_HEX4 "){1,5}|" LATHE_HEX4 ":(:" LATHE_HEX4
             "){1,6}|::([fF]{4}:)?" LATHE_BYTE "(\\." LATHE_BYTE "){3}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*:" LATHE_URI_CHAR "+(#" LATHE_URI_CHAR "*)?"},
    // RFC 3339, appendix A.
    {"duration",
     "P([0-9]{1,9}W|([0-9]{1,9}D|[0-9]{1,9}M([0-9]{1,9}D)?|[0-9]{1,9}Y([0-9]{1,9}M([0-9]{1,9}D)?)?)"
     "(T([0-9]{1,9}S|[0-9]{1,9}M([0-9]{1,9}S)?"
     "|[0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?))?|T([0-9]{1,9}S|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,"
     "9}H([0-9]{1,9}M([0-9]{1,9}S)?)?))"},
    {"json-pointer", "(/([^/~]|~[01])*)*"},
    {"email", "[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30})?@" LATHE_LABEL_46 "(\\." LATHE_LABEL_46
              "){1,3}"},
    {"hostname", LATHE_LABEL "(\\." LATHE_LABEL "){0,2}(\\." LATHE_LABEL_61 ")?"},
};

}  // namespace

std::optional<std::string> format_pattern(std::string_view format) {
  for (const auto& [name, pattern] : kFormats) {
    if (name == format) return std::string(pattern);
  }
  return std::nullopt;
}

std::string known_formats() {
  std::string out;
  for (const auto& [name, pattern] : kFormats) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

}  // namespace lathe::grammar
