#pragma once

// Waits of the host that end: with the work, with the error of whoever knows that waiting is in
// vain, or at a limit.

#include <functional>
#include <memory>
#include <string>

#include "core/check.h"

namespace ferry {

/// Seconds that the host waits for the work of one stream. Communication has a much shorter limit
/// of its own (core/comm/runtime.h) and fails the stream it runs on; this one ends a wait for a
/// kernel or a task that never ends. 6000, unless set.
double wait_limit_seconds();
void set_wait_limit(double seconds);

/// Error(ExitCode::Lost) that names `what`, which was not done in time.
[[noreturn]] void fail_wait(const std::string& what, double seconds);

/// `check` is called every few milliseconds from any thread that waits, and throws the error that
/// ends the wait. It is not called any more once the returned object is gone.
[[nodiscard]] std::shared_ptr<void> add_wait_check(std::function<void()> check);

/// Runs the checks from a thread of its own, too, for a host that is stuck where it cannot: in a
/// driver, or in a library that waits for another rank. An Error that a check still throws after
/// `patience` seconds, in which a thread that waits would have said it, goes to `on_stuck`, once.
/// Until the returned object is gone.
[[nodiscard]] std::shared_ptr<void> watch_for_stuck_host(
    double patience, std::function<void(const Error&)> on_stuck);

/// Blocks until ready() is true: looks again and again, without a pause at first, because most
/// waits are short, then sleeping between looks. `what` is for the message: "stream 'compute'".
void wait_until_ready(const std::string& what, const std::function<bool()>& ready);

}  // namespace ferry
