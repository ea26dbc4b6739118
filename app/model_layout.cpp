#include "app/model_layout.h"

namespace ferry {

MeshSizes mesh_sizes(const ParallelTable& parallel) {
  MeshSizes sizes;
  sizes.tensor = static_cast<int>(parallel.tensor);
  sizes.context = static_cast<int>(parallel.context);
  sizes.pipeline = static_cast<int>(parallel.pipeline);
  sizes.expert = static_cast<int>(parallel.expert);
  sizes.expert_tensor = static_cast<int>(parallel.expert_tensor);
  return sizes;
}

std::string grid_text(const RunConfig& config, const Mesh& mesh) {
  const MeshSizes& sizes = mesh.sizes();
  return concat("world ", mesh.world(), " = tp ", sizes.tensor,
                config.parallel.sequence ? " sp" : "", " cp ", sizes.context, " dp ", mesh.dp(),
                " pp ", sizes.pipeline, " vpp ", config.virtual_stages(), " | etp ",
                sizes.expert_tensor, " ep ", sizes.expert, " edp ", mesh.edp());
}

std::vector<StageLayers> model_stages(const RunConfig& config) {
  const ParallelTable& parallel = config.parallel;
  return parallel.layout.empty()
             ? even_stages(config.model.layers, parallel.pipeline * parallel.virtual_stages)
             : parse_layout(parallel.layout, config.model.layers);
}

std::vector<ModelPart> model_parts(const RunConfig& config, int pp) {
  std::vector<ModelPart> parts;
  for (const StageLayers& stage :
       stages_of_rank(model_stages(config), pp, static_cast<int>(config.parallel.pipeline)))
    parts.push_back({stage.embedding, stage.first_layer, stage.num_layers, stage.head});
  return parts;
}

ModelAxes model_axes(const ParallelTable& parallel, const MeshCoordinates& at) {
  ModelAxes axes;
  axes.tensor.rank = at.tp;
  axes.tensor.size = static_cast<int>(parallel.tensor);
  axes.tensor.sequence = parallel.sequence;
  axes.expert.ep_rank = at.ep;
  axes.expert.ep_size = static_cast<int>(parallel.expert);
  axes.expert.etp_rank = at.etp;
  axes.expert.etp_size = static_cast<int>(parallel.expert_tensor);
  return axes;
}

ModelAxes model_axes(const ParallelTable& parallel, const MeshGroups& groups) {
  ModelAxes axes = model_axes(parallel, groups.coordinates());
  axes.tensor.group = &groups.along("tp");
  axes.expert.exchange = &groups.along("exchange");
  return axes;
}

ScheduleShape schedule_shape(const RunConfig& config, ScheduleKind kind, int64_t num_micro) {
  ScheduleShape shape;
  shape.kind = kind;
  shape.num_ranks = static_cast<int>(config.parallel.pipeline);
  shape.num_chunks = static_cast<int>(config.virtual_stages());
  shape.num_micro = static_cast<int>(num_micro);
  shape.group = static_cast<int>(config.microbatch_group());
  return shape;
}

ScheduleShape training_schedule(const RunConfig& config, int64_t ranks) {
  return schedule_shape(config, usual_schedule(static_cast<int>(config.virtual_stages())),
                        config.num_microbatches(ranks));
}

}  // namespace ferry
