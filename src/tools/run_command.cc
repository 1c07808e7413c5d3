#include "tools/run_command.h"

#include <fmt/core.h>

#include <cstdio>
#include <exception>

#include "base/memory.h"
#include "tools/flags/command.h"

namespace lathe {

int run_command(int argc, char** argv) {
  int exit_code = kExitOk;
  try {
    CommandLine line("Lathe runs language models over typed KV caches.", "lathe", LATHE_VERSION);
    Command app = line.root();
    app.require_subcommand();
    add_layouts_command(app, exit_code);
    add_plan_command(app, exit_code);
    add_generate_command(app, exit_code);
    add_chat_command(app, exit_code);
    add_serve_command(app, exit_code);
    add_eval_command(app, exit_code);
    add_inspect_command(app, exit_code);
    add_calibrate_command(app, exit_code);
    add_tokenize_command(app, exit_code);
    add_bench_command(app, exit_code);
    if (const auto code = line.parse(argc, argv)) return *code;
  } catch (const OutOfMemory& e) {
    fmt::print(stderr, "lathe: {}\n", e.what());
    return kExitFailure;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr,
               "lathe: host memory: wanted more than the system gives, got {}; a smaller "
               "--chunked-prefill-size, --max-running-requests or --context-length\n",
               host_memory_text());
    return kExitFailure;
  } catch (const std::exception& e) {
    fmt::print(stderr, "lathe: {}\n", e.what());
    return kExitFailure;
  }
  // A full disk shows here at the latest.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fmt::print(stderr, "lathe: stdout: wanted a file that can be written, got an error\n");
    return exit_code == kExitOk ? kExitFailure : exit_code;
  }
  return exit_code;
}

}  // namespace lathe
