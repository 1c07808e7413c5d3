// HarmonyParts: splits an answer of gpt-oss into reasoning, content and tool calls as it arrives.
//
// An answer is messages, the first without <|start|>assistant, which ends the prompt:
//
//   <|channel|>analysis<|message|>TEXT<|end|>                                   reasoning
//   <|start|>assistant<|channel|>commentary<|message|>TEXT<|end|>               content
//   <|start|>assistant<|channel|>commentary to=functions.N <|constrain|>json<|message|>JSON<|call|>
//   <|start|>assistant<|channel|>final<|message|>TEXT<|return|>                 content
//
// The recipient (" to=") may come before the channel. The format is openai-harmony's.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/markup/text_parts.h"

namespace lathe {

/// The byte before a mark that came as a special token: no text has it, so that an answer may quote
/// marks.
inline constexpr char kMarkByte = '\xff';

struct HarmonyRules {
  // The prompt after its last <|start|>: the first message's header, and its text if the prompt has
  // a part of it.
  std::string begun = "assistant";
  bool marks_by_id = false;  // marks have kMarkByte before them; other text of that form is none
  bool reasoning_stays = false;  // reasoning is content, with all marks
  bool calls = false;            // messages to functions are calls
  bool prefixed = false;         // only to functions.NAME, not to NAME alone
  bool one_call = false;         // the first call is the last
  // Analysis ends at <|end|> alone, as in the grammar of text that a request constrains.
  bool whole_analysis = false;
  std::shared_ptr<const nlohmann::ordered_json> schemas = nullptr;  // the request's tools
};

/// Nothing is lost: a message that is no call to a function becomes content with its marks. Linear
/// in the text; holds back a header, the beginning of a mark, or an open call.
class HarmonyParts {
 public:
  explicit HarmonyParts(HarmonyRules rules);

  void push(std::string_view text, TextParts& out);
  /// `whole`: the answer ended by itself, not by a limit or a stop string.
  void finish(TextParts& out, bool whole);
  bool reasons() const { return state_ == State::reasoning; }
  std::size_t calls() const { return calls_; }
  bool complete() const { return rules_.one_call && calls_ > 0; }

 private:
  enum class State { between, header, reasoning, content, call };
  bool step(TextParts& out, bool last);
  bool step_between(TextParts& out, bool last);
  bool step_header(TextParts& out, bool last);
  bool step_body(TextParts& out, bool last);
  bool may_be_header() const;
  bool may_start_in_body() const { return !rules_.whole_analysis || !analysis_; }
  bool ends_message(std::string_view rest, bool starts, bool last, bool& wait) const;
  void open(std::string_view header, TextParts& out);
  void open_text(TextParts& out);
  void give(std::string_view text, TextParts& out);
  void end_message(std::string_view mark, TextParts& out, bool whole);
  std::string arriving(std::string_view text) const;

  HarmonyRules rules_;
  std::string start_, message_, channel_, end_, return_, call_;  // marks as they arrive
  State state_ = State::header;
  bool analysis_ = false;  // the message is of that channel
  std::string held_;
  std::size_t begun_ = 0;     // bytes at the front of held_ that are the prompt's
  std::string raw_;           // the current message's text so far with its marks, as far as it may
                              // become content
  bool raw_message_ = false;  // it does
  std::string body_;          // of a call
  std::string name_;          // of its function
  bool reasoned_ = false;     // reasoning has text
  bool told_ = false;         // content has text
  bool fresh_ = false;        // the current message has none yet
  std::size_t calls_ = 0;
};

}  // namespace lathe
