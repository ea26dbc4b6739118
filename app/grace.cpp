#include "app/grace.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace ferry {
namespace {

// Saves take different times; the last one comes when the machine may be busy.
constexpr double kMargin = 1.5;

}  // namespace

std::optional<double> declared_grace(const char* text) {
  if (text == nullptr) return std::nullopt;
  double seconds = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, seconds);
  if (error != std::errc() || stop != end || !std::isfinite(seconds) || seconds < 0)
    fail(ExitCode::Usage, "error: FERRY_GRACE_S = '", text,
         "'\n  why : it is how many seconds a run that was asked to stop may take to save\n  try : "
         "scripts/launch_mpirun.sh --grace SECONDS, or unset it");
  return seconds;
}

std::string grace_warning(double save_s, std::optional<double> grace_s,
                          std::optional<double> left_s) {
  const double needed = kMargin * save_s;
  std::string text;
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : "\n! ") + more; };
  const std::string save = fmt::format(
      "a save takes {:.1f} s, and {:.1f} s with half as much in reserve", save_s, needed);
  if (grace_s && needed > *grace_s)
    add(fmt::format(
        "{}, but a run that is asked to stop is ended after {:.1f} s (FERRY_GRACE_S): its last "
        "save "
        "may be lost; give more time with --grace {} of scripts/launch_mpirun.sh, and at least as "
        "much in the batch system",
        save, *grace_s, static_cast<int64_t>(std::ceil(needed))));
  if (left_s && needed > *left_s)
    add(fmt::format(
        "{}, but {:.1f} s are left of run.time_limit_minutes: the run will stop before long, and "
        "save after its limit; set the limit at least {:.1f} minutes below that of the batch "
        "system",
        save, *left_s, std::ceil(needed / 6) / 10));
  return text;
}

}  // namespace ferry
