// Readers of the fields that say what text an answer has to be.
#pragma once

#include "server/openai/field_readers.h"

namespace lathe {

Reader response_format();
Reader json_schema();
Reader regex();
Reader structured_outputs();

}  // namespace lathe
