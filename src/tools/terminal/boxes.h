// Rows of labelled boxes with byte offsets, in box-drawing characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct Box {
  std::string label;
  std::string detail;   // second line; may be empty
  std::int64_t offset;  // of its left edge
};

/// A row of boxes, each as wide as its texts need, with the offset over every edge; `end` is the
/// offset of the right edge. Ends with a newline.
std::string draw_boxes(const std::vector<Box>& boxes, std::int64_t end);

}  // namespace lathe
