#include "server/openai/block_format.h"

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
  std::string_view text = part.text, reasoning = part.reasoning;
  std::size_t call = 0;
  const auto take = [](std::string_view& from, std::size_t bytes) {
    const std::string_view taken = from.substr(0, bytes);
    from.remove_prefix(taken.size());
    return taken;
  };
  for (const PartRun& run : part.order) {
    switch (run.kind) {
      case PartKind::reasoning:
        give(Block::reasoning, take(reasoning, run.size), out);
        break;
      case PartKind::content:
        give(Block::text, take(text, run.size), out);
        break;
      case PartKind::call:
        for (std::size_t i = 0; i < run.size; ++i) {
          shut(false, out);
          add_call(part.calls[call++], out);
        }
        break;
    }
  }
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
  part(choice, {choice.text, choice.reasoning, choice.calls, 0, {}, choice.order}, events);
  end_blocks(choice, events);
  return answer(choice);
}

}  // namespace lathe
