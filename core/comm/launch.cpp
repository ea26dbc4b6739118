#include "core/comm/launch.h"

#include <cmath>
#include <cstdlib>

#include "core/check.h"

namespace ferry {

Launch read_launch(const std::function<const char*(const char*)>& variable) {
  const auto number = [&](const char* name) {
    const char* text = variable(name);
    return text == nullptr ? 0 : std::atoi(text);
  };
  // A plain start inside an allocation of the scheduler has SLURM_NTASKS, but is not a step of it.
  const int step_tasks = number("SLURM_STEP_NUM_TASKS");
  const auto rank = [&](const char* name) { return variable(name) == nullptr ? -1 : number(name); };
  if (variable("OMPI_COMM_WORLD_SIZE") != nullptr)
    return {true, number("OMPI_COMM_WORLD_SIZE"), rank("OMPI_COMM_WORLD_RANK")};
  if (variable("PMI_RANK") != nullptr) {
    const int size = number("PMI_SIZE");
    return {true, size > 0 ? size : step_tasks, rank("PMI_RANK")};
  }
  if (variable("PMIX_RANK") != nullptr) return {true, step_tasks, rank("PMIX_RANK")};
  if (step_tasks > 1)
    fail(ExitCode::Usage, "error: srun started ", step_tasks,
         " tasks without telling them of each other\n  why : its MPI plugin is none, so each task "
         "would be a job of its own\n  try : srun --mpi=pmix ..., or mpirun");
  return {};
}

double read_comm_timeout(const char* text) {
  if (text == nullptr) return 600;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(seconds) || seconds <= 0)
    fail(ExitCode::Usage, "error: FERRY_COMM_TIMEOUT_S = '", text,
         "'\n  why : the seconds that a communication may take must be a number above 0\n  try : "
         "600, or leave it unset");
  return seconds;
}

}  // namespace ferry
