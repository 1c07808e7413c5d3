#include "server/grammar/text/regex_emitter.h"

namespace lathe::grammar {

State add_regex(Builder& b, State from, const Regex& regex, RegexMatch match, Spelling spelling) {
  return Emitter<Builder>(b, match, spelling).emit(regex, from, true, true);
}

}  // namespace lathe::grammar
