#include "app/parallel_model.h"

#include <algorithm>

#include "app/graph_plan.h"
#include "app/recompute_plan.h"

namespace ferry {
namespace {

// Training, and evaluations of different lengths.
constexpr size_t kSchedulesKept = 4;

}  // namespace

ParallelModel::ParallelModel(const RunConfig& config, Stream& stream, const MeshGroups& groups)
    : config_(config),
      stream_(stream),
      groups_(groups),
      exchange_stream_(stream.device().make_stream("expert exchange")),
      axes_(model_axes(config.parallel, groups)),
      links_(groups.along("pp"), stream.device(), static_cast<int>(config.virtual_stages())),
      executor_(links_, stream) {
  axes_.expert.side = exchange_stream_.get();
  if (config.moe.rank_capacity_factor) {
    capacity_.factor = *config.moe.rank_capacity_factor;
    axes_.expert.capacity = &capacity_;
  }
  // Before the model is made: a schedule that cannot be is refused at once.
  schedule(training_schedule(config, groups.mesh().world()));
  const auto seed = static_cast<uint64_t>(config.run.seed);
  int num_blocks = 0;
  for (const ModelPart& part : model_parts(config, groups.coordinates().pp)) {
    auto chunk = std::make_unique<Gpt>(config.gpt(), config.debug.force_routing, seed, axes_, part,
                                       gpt_recompute(config.recompute),
                                       GptGraphs{&part_graphs_, graphed_parts(config.cuda_graph)});
    chunk->number_blocks_from(num_blocks);
    num_blocks += chunk->num_blocks();
    chunk->initialise(stream, seed);
    chunk->visit([&](Parameter& parameter) { parameters_.push_back(&parameter); });
    chunks_.push_back(std::move(chunk));
  }
}

const RankSchedule& ParallelModel::schedule(const ScheduleShape& shape) {
  const auto found = std::find_if(
      schedules_.begin(), schedules_.end(),
      [&](const auto& shape_and_schedule) { return shape_and_schedule.first == shape; });
  if (found != schedules_.end()) return found->second;
  if (schedules_.size() == kSchedulesKept) schedules_.pop_back();
  schedules_.emplace_front(shape, proved_schedule(shape, groups_.coordinates().pp));
  return schedules_.front().second;
}

ParallelModel::Input ParallelModel::run(int64_t num_micro, BatchFeed& feed, BlockHooks& hooks,
                                        const StepContext& context,
                                        std::function<void(int, int)> before_backward) {
  const ScheduleKind kind = context.training ? usual_schedule(static_cast<int>(chunks_.size()))
                                             : ScheduleKind::ForwardOnly;
  const RankSchedule& schedule = this->schedule(schedule_shape(config_, kind, num_micro));
  const int64_t num_tokens = config_.batch.micro * config_.model.seq;
  const MessageType message{{axes_.tensor.num_rows(num_tokens), config_.model.hidden},
                            dtype_of(config_.model.precision)};
  if (context.num_graphed > 0 && !graph_)
    graph_ = std::make_unique<GraphedMicroBatch>(*chunks_.front());
  const bool saves = context.training && context.memory != nullptr;
  const bool launches = context.num_graphed > 0 && graph_->graph() != nullptr;
  if (saves) context.memory->begin_step(schedule.actions, stream_, launches);
  MicroBatchWork work(chunks_, stream_, feed, hooks, context, std::move(before_backward),
                      graph_.get());
  executor_.run(schedule, message, work);
  work.check_done();
  if (saves) context.memory->end_step(stream_);
  const MeshCoordinates at = groups_.coordinates();
  return {at.tp == 0 && at.pp == 0 ? work.num_loss_tokens() : 0, work.data_seconds()};
}

std::vector<std::vector<Parameter*>> ParallelModel::parameters_by_block() const {
  std::vector<std::vector<Parameter*>> blocks;
  for (const auto& chunk : chunks_)
    for (auto& block : chunk->parameters_by_block()) blocks.push_back(std::move(block));
  return blocks;
}

std::vector<Gpt::ExpertCounts> ParallelModel::expert_counts() const {
  std::vector<Gpt::ExpertCounts> counts;
  for (const auto& chunk : chunks_)
    counts.insert(counts.end(), chunk->expert_counts().begin(), chunk->expert_counts().end());
  return counts;
}

}  // namespace ferry
