#include "server/openai/block_format.h"

#include <algorithm>
#include <utility>

namespace lathe {

void BlockFormat::open(Choice& choice, std::string& out) {
  opened_ = true;
  begin_stream(choice, out);
}

void BlockFormat::give(Block block, std::string_view text, std::string& out) {
  if (text.empty()) return;
  if (block_ != block) {
    shut(false, out);
    block_ = block;
    begin_block(block, out);
  }
  add(block, text, out);
}

void BlockFormat::shut(bool cut, std::string& out) {
  if (block_ != Block::none) end_block(std::exchange(block_, Block::none), cut, out);
}

void BlockFormat::part(Choice&, const ChoicePart& part, std::string& out) {
  give(Block::reasoning, part.reasoning, out);
  std::size_t done = 0;
  for (const AnswerCall& call : part.calls) {
    const std::size_t at = std::clamp(call.call.text_before, done, part.text.size());
    give(Block::text, part.text.substr(done, at - done), out);
    done = at;
    shut(false, out);
    add_call(call, out);
  }
  give(Block::text, part.text.substr(done), out);
}

void BlockFormat::end_blocks(const Choice& choice, std::string& out) {
  shut(choice.end->kind == EndKind::length || choice.end->kind == EndKind::abort, out);
}

void BlockFormat::end(Choice& choice, std::string& out) {
  end_blocks(choice, out);
  end_stream(choice, out);
}

std::string BlockFormat::whole(std::span<Choice> choices, const RequestTimes&) {
  Choice& choice = choices[0];
  std::string events;  // dropped
  part(choice, {choice.text, choice.reasoning, choice.calls, 0, {}}, events);
  end_blocks(choice, events);
  return answer(choice);
}

}  // namespace lathe
