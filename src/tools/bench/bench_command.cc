// lathe bench: measurements, each against a limit or a copy measured in the same run.
#include "tools/bench/kernels/kernel_benches.h"
#include "tools/bench/model/model_benches.h"
#include "tools/bench/server/server_benches.h"
#include "tools/flags/command.h"

namespace lathe {

void add_bench_command(Command app, int& exit_code) {
  Command bench = app.add_subcommand("bench", "Measure, against a limit or a copy in the same run");
  bench.require_subcommand();
  add_kernel_benches(bench, exit_code);
  add_model_benches(bench, exit_code);
  add_server_benches(bench, exit_code);
}

}  // namespace lathe
