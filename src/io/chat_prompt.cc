#include "io/chat_prompt.h"

namespace lathe {

Result<std::vector<std::int32_t>> encode_chat(const nlohmann::ordered_json& messages,
                                              const ChatTemplateFile& chat,
                                              const Tokenizer& tokenizer) {
  const auto text = chat.chat_template.render({{"messages", messages},
                                               {"add_generation_prompt", true},
                                               {"bos_token", chat.bos_token},
                                               {"eos_token", chat.eos_token}});
  if (!text) return text.error();
  return tokenizer.encode(*text);
}

}  // namespace lathe
