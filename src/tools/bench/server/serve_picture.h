// A picture of the figures of lathe bench serve.
#pragma once

#include <string>

#include "tools/bench/server/serve_figures.h"

namespace lathe {

/// SVG: a panel for each of the times, with the value that each share of the requests keeps below,
/// and one with the tokens of each second.
std::string serve_picture(const std::string& title, const ServeFigures& figures);

}  // namespace lathe
