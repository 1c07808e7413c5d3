// The flags of lathe serve.
#pragma once

#include <string>
#include <vector>

#include "server/service/options.h"
#include "tools/flags/flags.h"
#include "tools/flags/model_flags.h"

namespace lathe {

struct ServeFlags {
  ModelFlags model;
  ServerOptions server;
  std::int64_t max_body_bytes = 16 << 20;
  std::int64_t max_header_bytes = 32 << 10;
  std::string api_key_file;
  std::string template_kwargs;
  std::string chat_template;  // a file
  std::string sampling_defaults = "model";
  std::string scheduling_policy = "fcfs";
  std::string log_format = "text";
  std::vector<std::string> metric_names;
  std::vector<std::string> warnings;  // of complete(), to be printed
  bool list_routes = false;
  bool list_fields = false;
};

/// Adds all flags; they are also read from the environment.
void add_serve_flags(Command command, ServeFlags& flags);

/// Completes the options from the command line. Call it in the callback. Errors: an --api-key-file
/// that cannot be read or that others can write; an empty key, or one that no header can carry;
/// kwargs that are not a JSON object, or name what requests set; names that no request can have; a
/// flag without the one that it needs.
Result<void> complete(const Command& command, ServeFlags& flags);

/// One line per flag, with its value and where it came from. Never shows keys.
std::string describe_effective(const Command& command);

}  // namespace lathe
