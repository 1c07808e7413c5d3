// Readers of the fields that constrain an answer's text.
#pragma once

#include "server/openai/field_readers.h"

namespace lathe {

Reader response_format();
Reader json_schema();
Reader regex();
Reader grammar_rules();
Reader choice();
Reader structured_outputs();

}  // namespace lathe
