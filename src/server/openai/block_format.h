// BlockFormat: answers as a sequence of blocks, each of reasoning, of text, or one call. Responses
// and Messages differ in how a block is written.
#pragma once

#include <string>
#include <string_view>

#include "server/openai/answer.h"

namespace lathe {

/// A stream's events build the blocks of a whole answer as well, so both have the same. Streams
/// have one choice.
class BlockFormat : public AnswerFormat {
 public:
  bool wants_tokens() const override { return false; }
  std::string_view last() const override { return ""; }

  void open(Choice& choice, std::string& out) override;
  void part(Choice& choice, const ChoicePart& part, std::string& out) override;
  void end(Choice& choice, std::string& out) override;
  void close(std::span<const Choice>, const RequestTimes&, std::string&) override {}
  std::string whole(std::span<Choice> choices, const RequestTimes& times) override;

 protected:
  enum class Block { none, reasoning, text };

  virtual void begin_stream(const Choice& choice, std::string& out) = 0;
  virtual void begin_block(Block block, std::string& out) = 0;
  virtual void add(Block block, std::string_view text, std::string& out) = 0;
  /// `cut`: the answer ended in it, by its limit.
  virtual void end_block(Block block, bool cut, std::string& out) = 0;
  virtual void add_call(const AnswerCall& call, std::string& out) = 0;
  virtual void end_stream(const Choice& choice, std::string& out) = 0;
  /// The answer with its blocks, all of which have ended.
  virtual std::string answer(const Choice& choice) = 0;

  bool opened() const { return opened_; }

 private:
  void give(Block block, std::string_view text, std::string& out);
  void shut(bool cut, std::string& out);
  void end_blocks(const Choice& choice, std::string& out);

  Block block_ = Block::none;  // the one that is open
  bool opened_ = false;
};

}  // namespace lathe
