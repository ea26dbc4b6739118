#pragma once

// How [parallel] cuts the model: the part of a rank, and the schedule of its passes. Pure, but for
// the groups.

#include <string>
#include <vector>

#include "app/model/gpt.h"
#include "app/run_config.h"
#include "core/comm/mesh.h"
#include "pipeline/schedule.h"
#include "pipeline/stage_layout.h"

namespace ferry {

MeshSizes mesh_sizes(const ParallelTable& parallel);
/// One line, for checkpoints and benchmarks: "world 8 = tp 2 sp cp 1 dp 2 pp 2
/// vpp 1 | etp 1 ep 2 edp 2".
std::string grid_text(const RunConfig& config, const Mesh& mesh);

/// All stages of the pipeline, in the order of the model.
std::vector<StageLayers> model_stages(const RunConfig& config);
/// The chunks of pipeline rank `pp`, in order.
std::vector<ModelPart> model_parts(const RunConfig& config, int pp);

/// How the ranks at these coordinates share modules; without groups, to describe a model.
ModelAxes model_axes(const ParallelTable& parallel, const MeshCoordinates& at);
/// The same to run it.
ModelAxes model_axes(const ParallelTable& parallel, const MeshGroups& groups);

/// The schedule of `num_micro` micro-batches.
ScheduleShape schedule_shape(const RunConfig& config, ScheduleKind kind, int64_t num_micro);
ScheduleShape training_schedule(const RunConfig& config, int64_t ranks);

}  // namespace ferry
