#include "checkpoint/agreement.h"

#include "core/check.h"

namespace ferry {
namespace {

// A message is "ok" and a text, or "error N" and a message, with a newline between.
constexpr std::string_view kOk = "ok\n";
constexpr std::string_view kError = "error ";

std::string run(const std::function<std::string()>& body) {
  try {
    return std::string(kOk) + body();
  } catch (const Error& error) {
    return concat(kError, static_cast<int>(error.code()), "\n", error.what());
  } catch (const std::exception& error) {
    return concat(kError, static_cast<int>(ExitCode::Internal), "\n", error.what());
  }
}

std::string open(const std::string& message) {
  if (message.starts_with(kOk)) return message.substr(kOk.size());
  CHECK(message.starts_with(kError), "not an outcome: ", message);
  const size_t line_end = message.find('\n');
  const int code = std::stoi(message.substr(kError.size(), line_end - kError.size()));
  throw Error(static_cast<ExitCode>(code), message.substr(line_end + 1));
}

/// "ok", or the first error with its rank.
std::string verdict(const std::vector<std::string>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    std::string outcome = outcomes[rank];
    if (outcome.starts_with(kOk)) continue;
    if (outcomes.size() > 1) outcome.insert(outcome.find('\n') + 1, concat("rank ", rank, ": "));
    return outcome;
  }
  return std::string(kOk);
}

}  // namespace

std::vector<std::string> gather_together(Control& control, const std::string& what,
                                         const std::function<std::string()>& body) {
  std::vector<std::string> outcomes = control.gather(run(body), 0, what);
  open(control.broadcast(verdict(outcomes), 0, what));
  for (std::string& outcome : outcomes) outcome = open(outcome);
  return outcomes;
}

std::string decide_on_root(Control& control, const std::string& what,
                           const std::function<std::string()>& body) {
  return open(control.broadcast(control.rank() == 0 ? run(body) : "", 0, what));
}

}  // namespace ferry
