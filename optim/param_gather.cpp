#include "optim/param_gather.h"

#include <algorithm>

#include "optim/shards.h"

namespace ferry {

ParamGather::ParamGather(const std::vector<std::vector<Parameter*>>& blocks,
                         const ReduceGroups& groups, Device& device, bool overlap)
    : stream_(device.make_stream("parameter gather")),
      blocks_(blocks.size()),
      ready_(blocks.size()),
      num_gathered_(blocks.size()),
      overlap_(overlap) {
  for (size_t block = 0; block < blocks.size(); ++block) {
    for (Parameter* parameter : blocks[block]) {
      Group& group = groups.of(parameter->axis);
      if (group.size() == 1) continue;
      const bool tied = parameter->axis == ReduceAxis::Tied;
      (tied ? tied_ : blocks_[block]).push_back({parameter, &group, block});
      has_gathers_ = true;
    }
  }
}

void ParamGather::start(Stream& compute, StateStore& store) {
  store_ = &store;
  num_gathered_ = 0;
  stream_->wait(compute.record());
  if (!store.updates_later()) gather_until(blocks_.size());
  // Where no other rank has rows, there is nothing but the updates to wait for, block by block.
  if (!overlap_ && has_gathers_) wait_all(compute);
}

void ParamGather::gather_until(size_t end) {
  for (; num_gathered_ < end; ++num_gathered_) {
    if (num_gathered_ == 0) {
      for (const Gather& part : tied_) {
        store_->wait_values(*stream_, static_cast<int>(part.block));
        gather(part);
      }
    }
    const std::vector<Gather>& parts = blocks_[num_gathered_];
    if (!parts.empty()) store_->wait_values(*stream_, static_cast<int>(num_gathered_));
    for (const Gather& part : parts) gather(part);
    ready_[num_gathered_] = stream_->record();
  }
}

void ParamGather::before_forward(Pass& pass, int block_idx) {
  const auto block = static_cast<size_t>(block_idx);
  gather_until(std::max(num_gathered_, block + 1));
  pass.stream.wait(ready_.at(block));
  ready_[block] = Event();
  // Those that no other rank has.
  if (store_ != nullptr) store_->wait_values(pass.stream, block_idx);
}

void ParamGather::wait_all(Stream& stream) {
  gather_until(blocks_.size());
  stream.wait(stream_->record());
  if (store_ != nullptr) store_->wait_all_values(stream);
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
