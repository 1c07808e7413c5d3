// The flags that become Wishes, the same for every subcommand that plans.
#pragma once

#include "attn/wishes.h"
#include "tools/flags.h"

namespace lathe {

/// Adds --prefill-attention-backend, --kv-layout, --page-size and the other flags of a plan, with
/// the names and aliases of other systems. `wishes` must outlive the app.
void add_wish_flags(Command command, Wishes& wishes);

}  // namespace lathe
