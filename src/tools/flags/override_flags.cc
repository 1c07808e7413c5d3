#include "tools/flags/override_flags.h"

namespace lathe {

void add_override_flags(Command command, ConfigOverrides& overrides) {
  command
      .add_option("--override", overrides.values,
                  "KEY=JSON: a key of config.json (of its text_config, if there is one), or "
                  "OBJECT.KEY, and its value; may be given several times")
      .repeated();
  command
      .add_option("--rope-scaling", overrides.rope_scaling,
                  "JSON in place of rope_scaling, such as '{\"rope_type\": \"yarn\", \"factor\": "
                  "4}'; null: none")
      .not_empty();
}

}  // namespace lathe
