// A program on the engine: loads a shipped model, and prints the tokens of a short answer.
#include <cstdio>
#include <variant>

#include "engine/runtime.h"
#include "plan/explain.h"

int main() {
  int warned_about_at_home_only = 0.5;  // -Wconversion
  lathe::RuntimeOptions options;
  options.model = LATHE_MODEL;
  options.device = "cpu";
  auto runtime = lathe::Runtime::create(options);
  if (!runtime) {
    std::fprintf(stderr, "the model did not start\n");
    return 1;
  }
  lathe::Engine& engine = (*runtime)->engine();
  lathe::Request request{{1, 2, 3}};
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 4;
  if (!engine.submit(std::move(request))) return 1;
  int tokens = 0;
  while (!engine.idle()) {
    const auto report = engine.step();
    if (!report) return 1;
    for (const auto& event : report->tokens) {
      std::printf("%d\n", event.sampled.token);
      ++tokens;
    }
  }
  return tokens > 0 ? warned_about_at_home_only : 1;
}
