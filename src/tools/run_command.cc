#include "tools/run_command.h"

#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <exception>

#include "base/memory.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

constexpr int kExitReaderGone = 128 + SIGPIPE;  // as a shell shows the signal that it would be

}  // namespace

int run_command(int argc, char** argv) {
  keep_standard_files();
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
    if (const auto code = line.parse(argc, argv)) exit_code = *code;
    flush_out();
  } catch (const ReaderGone&) {
    return kExitReaderGone;
  } catch (const OutOfMemory& e) {
    print_err(fmt::format("lathe: {}\n", e.what()));
    return kExitFailure;
  } catch (const std::bad_alloc&) {
    print_err(
        fmt::format("lathe: host memory: wanted more than the system gives, got {}; a smaller "
                    "--chunked-prefill-size, --max-running-requests or --context-length\n",
                    host_memory_text()));
    return kExitFailure;
  } catch (const std::exception& e) {
    print_err(fmt::format("lathe: {}\n", e.what()));
    return kExitFailure;
  }
  if (std::ferror(stdout) != 0) {  // a full disk
    print_err(fmt::format("lathe: stdout: wanted a file that can be written, got an error\n"));
    return exit_code == kExitOk ? kExitFailure : exit_code;
  }
  return exit_code;
}

}  // namespace lathe
