#include "optim/param_gather.h"

#include "optim/shards.h"

namespace ferry {

ParamGather::ParamGather(const std::vector<std::vector<Parameter*>>& blocks,
                         const ReduceGroups& groups, Device& device, bool overlap)
    : stream_(device.make_stream("parameter gather")),
      blocks_(blocks.size()),
      ready_(blocks.size()),
      overlap_(overlap) {
  for (size_t block = 0; block < blocks.size(); ++block) {
    for (Parameter* parameter : blocks[block]) {
      Group& group = groups.of(parameter->axis);
      if (group.size() == 1) continue;
      const bool tied = parameter->axis == ReduceAxis::Tied;
      (tied ? tied_ : blocks_[block]).push_back({parameter, &group});
    }
  }
}

void ParamGather::start(Stream& compute) {
  stream_->wait(compute.record());
  for (const Gather& part : tied_) gather(part);
  for (size_t block = 0; block < blocks_.size(); ++block) {
    for (const Gather& part : blocks_[block]) gather(part);
    ready_[block] = stream_->record();
  }
  all_ready_ = stream_->record();
  if (!overlap_) wait_all(compute);
}

void ParamGather::before_forward(Pass& pass, int block_idx) {
  Event& ready = ready_.at(static_cast<size_t>(block_idx));
  pass.stream.wait(ready);
  ready = Event();
}

void ParamGather::gather(const Gather& gather) {
  const Parameter& parameter = *gather.parameter;
  Group& group = *gather.group;
  const int64_t rows = matrix_rows(parameter.shape), columns = matrix_columns(parameter.shape);
  const int64_t per_rank = rows_per_rank(parameter, group.size());
  const int64_t first = group.rank() * per_rank;
  const Tensor value = parameter.value.reshape({rows, columns});
  if (rows == per_rank * group.size()) {
    group.all_gather(*stream_, value, value.rows(first, first + per_rank));
  } else {
    const Tensor padded = Tensor::empty(*stream_, "parameter gather",
                                        {per_rank * group.size(), columns}, parameter.dtype);
    const RowRange own = owned_rows(parameter, group.rank(), group.size());
    stream_->copy(padded.rows(first, first + own.end - own.begin), value.rows(own.begin, own.end));
    group.all_gather(*stream_, padded, padded.rows(first, first + per_rank));
    stream_->copy(value, padded.rows(0, rows));
  }
  stream_->hold(value);
}

}  // namespace ferry
