#pragma once

// How this process was started, from the environment that launchers set.

#include <functional>

namespace ferry {

struct Launch {
  /// mpirun, or srun with a PMI, started it.
  bool by_launcher = false;
  /// How many ranks the launcher says there are; 0 if it does not say.
  int num_ranks = 1;
  /// This process's rank by the launcher; -1 if it does not say.
  int rank = 0;
};

/// `variable` looks up an environment variable: its value, or null. Error(ExitCode::Usage) for srun
/// of several tasks without a PMI, which would be as many separate jobs.
Launch read_launch(const std::function<const char*(const char*)>& variable);

/// The seconds that FERRY_COMM_TIMEOUT_S = `text` means; 600 for null. Error(ExitCode::Usage) if it
/// is not a number above 0.
double read_comm_timeout(const char* text);

}  // namespace ferry
