// Streams a model's answer: generate MODEL PROMPT
#include <lathe/engine.h>

#include <cstdio>
#include <string>

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: generate MODEL PROMPT\n");
    return 2;
  }
  try {
    lathe::Engine engine =
        lathe::Engine::load("{\"device\": \"cpu\", \"model\": " + quoted(argv[1]) + "}").value();
    const auto prompt =
        engine.encode_chat("[{\"role\": \"user\", \"content\": " + quoted(argv[2]) + "}]").value();
    engine.submit(prompt, R"({"max_new_tokens": 100})").value();
    while (!engine.idle()) {
      for (const lathe::Event& event : engine.step().value()) {
        std::printf("%s", event.text.c_str());
        std::fflush(stdout);
      }
    }
    std::printf("\n");
  } catch (const lathe::Failure& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
