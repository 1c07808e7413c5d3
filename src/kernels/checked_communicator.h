// Checks that an exchange has left the same bits on all ranks.
#pragma once

#include <memory>

#include "kernels/communicator.h"

namespace lathe {

/// Passes calls on to `inner`, which must outlive it. After a sum, and after the norm of one, the
/// ranks compare a hash of the rows; if it differs, the group is aborted with an error that names
/// the exchange and the first rank that differs from rank 0. Rows are downloaded for that, so every
/// exchange is waited for, and steps must not be recorded. Rows of x that a rank does not own are
/// not compared, and what trade_columns() and share_records() write differs by rank.
std::unique_ptr<Communicator> make_checked_communicator(Communicator& inner);

}  // namespace lathe
