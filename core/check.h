#pragma once

// Errors. Every failure in Ferry is one exception type that carries the exit code of the process:
// `main` catches it, prints it once with the rank, and ends the job with that code. CHECK guards
// our own contracts (a failing CHECK is a bug in Ferry); errors a user can cause are thrown with
// the make_*_error functions and say what is wrong, where, why, and how to fix it.

#include <sstream>
#include <stdexcept>
#include <string>

namespace ferry {

/// Exit codes of the `ferry` program. Scripts rely on them; see docs/errors.md.
enum class ExitCode : int {
  Done = 0,
  Internal = 1,   // a bug in Ferry
  Usage = 2,      // command line or configuration
  Data = 3,       // training data or tokenizer
  Storage = 4,    // checkpoint or file system
  Resource = 5,   // no such device, not enough memory
  Numerical = 6,  // non-finite loss or gradient
  Lost = 75,      // a rank or a connection was lost or hung: restart
  Stopped = 76,   // stopped on request or time limit after a save: requeue
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// The parts written one after the other, as an ostream would.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] void fail(ExitCode code, const Parts&... parts) {
  throw Error(code, concat(parts...));
}

namespace detail {
[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const std::string& message);
}

}  // namespace ferry

/// CHECK(rows == x.dim(0), "rows ", rows, " but x has ", x.dim(0)) throws an Internal error that
/// quotes the expression, file and line.
#define CHECK(condition, ...)                                                        \
  do {                                                                               \
    if (!(condition)) [[unlikely]]                                                   \
      ::ferry::detail::check_failed(#condition, __FILE__, __LINE__,                  \
                                    ::ferry::concat("" __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)
