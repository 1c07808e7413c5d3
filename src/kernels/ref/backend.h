// The backend of the double-precision oracle: each operator as plain loops on the calling thread.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace lathe {

std::unique_ptr<Backend> make_ref_backend();

}  // namespace lathe
