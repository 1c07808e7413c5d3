// Shared by the subcommands: exit codes, and printing to the terminal.
#pragma once

#include <string>

#include "base/print.h"
#include "base/result.h"
#include "tools/flags/flags.h"

namespace lathe {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  // something broke
inline constexpr int kExitRefused = 2;  // a configuration that is refused, or bad input

/// Adds the subcommand; its callback leaves the exit code in `exit_code`.
void add_layouts_command(Command app, int& exit_code);
void add_plan_command(Command app, int& exit_code);
void add_bench_command(Command app, int& exit_code);
void add_generate_command(Command app, int& exit_code);
void add_chat_command(Command app, int& exit_code);
void add_eval_command(Command app, int& exit_code);
void add_inspect_command(Command app, int& exit_code);
void add_calibrate_command(Command app, int& exit_code);
void add_tokenize_command(Command app, int& exit_code);
void add_serve_command(Command app, int& exit_code);

/// Whether stdout takes colours and other terminal codes: it is a terminal, and NO_COLOR is unset.
bool stdout_takes_color();

/// Prints "lathe: <message>" to stderr and returns kExitRefused.
int refuse(const Error& error);

}  // namespace lathe
