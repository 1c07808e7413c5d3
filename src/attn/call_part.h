// CallPart: the halves of a call in a caller's memory of the device.
#pragma once

namespace lathe {

/// Make the schedule of a step's lengths there, attend by the schedule that lies there, or one
/// after the other.
enum class CallPart { both, schedule, attention };

}  // namespace lathe
