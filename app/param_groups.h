#pragma once

// Where the optimizer's state of each parameter lives: a line for the log, and the file that
// optimizer.offload.dump_param_groups names:
//
//   {"fraction": 0.5,
//    "groups": [{"id": 0, "kind": "dense", "decay": true, "parameters": 9, "on_host": 5,
//                "elements": 2048, "host_elements": 1024}, ...],
//    "parameters": {"layers/0/attention/qkv/weight": {"group": 0, "place": "host",
//                                                     "elements": 512, "host_elements": 512}, ...}}
//
// Group ids are 0 dense with decay, 1 dense without, 2 experts with, 3 experts without; groups
// without parameters are left out. Elements are summed over the ranks that update them, so those
// that several ranks update count for each. A parameter of which some ranks have their part on the
// host and others on the device has the place "both".

#include <string>
#include <vector>

#include "core/comm/control.h"
#include "offload/optimizer_partition.h"

namespace ferry {

/// What this rank updates: "optimizer: 12 parameters (1.20 G elements) on the host, 3 (40.0 M) on
/// the device | dense ... | experts ...".
std::string optimizer_places_text(const std::vector<OptimizerPlace>& places);

/// Collective: gathers the places of all ranks; rank 0 writes the file, in one piece or not at all.
/// Error(ExitCode::Storage), on rank 0, if it cannot be written.
void write_param_groups(const std::string& path, double fraction,
                        const std::vector<OptimizerPlace>& places, Control& control);

}  // namespace ferry
