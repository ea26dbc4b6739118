#pragma once

// Whether the last save of a run that is asked to stop will be done before the run is ended.

#include <optional>
#include <string>

namespace ferry {

/// Seconds that whoever ends the run gives it to save, by the text of FERRY_GRACE_S, which the
/// launch scripts set; none if it is not set. Error(ExitCode::Usage) if it is no number of seconds.
std::optional<double> declared_grace(const char* text);

/// What to say after the first save, which stopped training for `save_s` or would have; empty if
/// half as much again is within the grace and within what is `left_s` of the time limit. Absent
/// limits allow everything.
std::string grace_warning(double save_s, std::optional<double> grace_s,
                          std::optional<double> left_s);

}  // namespace ferry
