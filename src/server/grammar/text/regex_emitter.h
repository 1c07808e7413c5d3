// Emitter: adds the texts that match a regular expression to a Builder, as bytes, or to a TextNfa,
// as characters.
#pragma once

#include "server/grammar/text/regex.h"

namespace lathe::grammar {

template <class B>
class Emitter {
 public:
  Emitter(B& b, RegexMatch match, Spelling spelling)
      : b_(b), anywhere_(match == RegexMatch::anywhere), spelling_(spelling) {}

  State emit(const Regex& r, State from, bool at_begin, bool at_end) {
    if (b_.full()) return from;
    switch (r.kind) {
      case Regex::Kind::begin:
      case Regex::Kind::end:
        return from;
      case Regex::Kind::choice: {
        const State out = b_.state(from);
        for (const Regex& part : r.parts) b_.skip(emit(part, from, at_begin, at_end), out);
        return out;
      }
      case Regex::Kind::join:
        if (r.parts.empty()) break;
        for (std::size_t i = 0; i < r.parts.size(); ++i) {
          from = emit(r.parts[i], from, at_begin && i == 0, at_end && i + 1 == r.parts.size());
        }
        return from;
      default:
        break;
    }
    if (at_begin) from = anything(from);
    from = inner(r, from);
    return at_end ? anything(from) : from;
  }

 private:
  // Adds the text that may surround a match.
  State anything(State from) {
    if (!anywhere_) return from;
    const State loop = b_.state(from);
    b_.skip(from, loop);
    add_char(b_, loop, CharSet::all(), spelling_, loop);
    return loop;
  }

  State inner(const Regex& r, State from) {
    if (r.kind == Regex::Kind::character) {
      const State to = b_.state(from);
      add_char(b_, from, r.chars, spelling_, to);
      return to;
    }
    if (r.kind != Regex::Kind::repeat) return from;
    const Regex& body = r.parts[0];
    if (body.kind == Regex::Kind::character) {
      return b_.repeat(from, r.least, r.most,
                       [&](State s, State to) { add_char(b_, s, body.chars, spelling_, to); });
    }
    const auto once = [&](State s) { return emit(body, s, false, false); };
    for (std::int64_t i = 0; i < r.least && !b_.full(); ++i) from = once(from);
    const State out = b_.state(from);
    b_.skip(from, out);
    if (r.most == Regex::kNoMost) {
      b_.skip(once(out), out);
      return out;
    }
    for (std::int64_t i = r.least; i < r.most && !b_.full(); ++i) {
      from = once(from);
      b_.skip(from, out);
    }
    return out;
  }

  B& b_;
  const bool anywhere_;
  const Spelling spelling_;
};

}  // namespace lathe::grammar
