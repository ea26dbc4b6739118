#include "pipeline/executor.h"

#include "core/check.h"

namespace ferry {
namespace {

bool is_forward(const Action& action) { return action.kind == Action::Kind::Forward; }

std::string text(const Action& action) { return action_text(action, 2); }

void check_message(const Action& action, const MessageType& message, const Tensor& tensor) {
  CHECK(tensor.defined(), text(action), " returned no tensor for the next stage");
  CHECK(tensor.shape() == message.shape && tensor.dtype() == message.dtype, text(action),
        " returned ", tensor.shape(), ' ', name_of(tensor.dtype()), ", but the next stage expects ",
        message.shape, ' ', name_of(message.dtype));
}

}  // namespace

bool Executor::first_in_model(const Action& action) const {
  return links_.rank() == 0 && action.chunk == 0;
}

bool Executor::last_in_model(const Action& action) const {
  return links_.rank() == links_.size() - 1 && action.chunk == links_.num_chunks() - 1;
}

bool Executor::receives(const Action& action) const {
  return !(is_forward(action) ? first_in_model(action) : last_in_model(action));
}

bool Executor::sends(const Action& action) const {
  return !(is_forward(action) ? last_in_model(action) : first_in_model(action));
}

std::deque<Tensor>& Executor::own_messages(const Action& action) {
  return is_forward(action) ? own_activations_ : own_gradients_;
}

Event Executor::receive(const Action& action, const Tensor& tensor, const Event& may_start) {
  const PipelineLink* link = is_forward(action) ? links_.activations_in() : links_.gradients_in();
  CHECK(link != nullptr, "no link for the message of ", text(action));
  Stream& stream = *link->stream;
  stream.wait(may_start);
  link->group->receive(stream, tensor, link->peer);
  return stream.record();
}

void Executor::send(const Action& action, const Tensor& tensor) {
  if (links_.size() == 1) {
    own_messages(action).push_back(tensor);
    return;
  }
  const PipelineLink* link = is_forward(action) ? links_.activations_out() : links_.gradients_out();
  CHECK(link != nullptr, "no link for the result of ", text(action));
  link->stream->wait(compute_.record());
  link->group->send(*link->stream, tensor, link->peer);
}

void Executor::run(const RankSchedule& schedule, const MessageType& message, StageWork& work) {
  const std::vector<Action>& actions = schedule.actions;
  CHECK(schedule.kept_until.size() == actions.size(), schedule.kept_until.size(), " numbers for ",
        actions.size(), " actions");
  own_activations_.clear();
  own_gradients_.clear();
  std::vector<SentMessage> sent;
  // Memory of the compute stream, so that it is free again when the pass that uses it is done: of
  // the link's, the next receive would wait for that pass.
  const auto room_for = [&](size_t i) {
    if (links_.size() == 1 || i == actions.size() || !receives(actions[i])) return Tensor();
    return Tensor::empty(compute_, "pipeline messages", message.shape, message.dtype);
  };
  Event ready;
  Tensor next = room_for(0);
  if (next.defined()) ready = receive(actions[0], next, compute_.record());
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    CHECK(action.chunk >= 0 && action.chunk < links_.num_chunks(), "no chunk for ", text(action));
    Tensor input = std::move(next);
    if (input.defined()) {
      compute_.wait(ready);
    } else if (receives(action)) {
      std::deque<Tensor>& messages = own_messages(action);
      CHECK(!messages.empty(), "no message for ", text(action));
      input = std::move(messages.front());
      messages.pop_front();
    }
    // Not before the input has come: that is what shows that these messages have come, too.
    std::erase_if(sent,
                  [&](const SentMessage& old) { return old.kept_until <= static_cast<int>(i); });
    // The next message may come while this action runs, not sooner: the memory is not needed.
    next = room_for(i + 1);
    const Event begin = compute_.record();
    const Tensor output = is_forward(action) ? work.forward(action.chunk, action.micro, input)
                                             : work.backward(action.chunk, action.micro, input);
    if (sends(action)) {
      check_message(action, message, output);
      send(action, output);
      if (links_.size() > 1) sent.push_back({output, schedule.kept_until[i]});
    }
    // Enqueued last, so that what is enqueued never waits for what is not: if the host has to wait
    // for the device in the middle of an action (memory, the loading of a kernel, counts of rows),
    // the device can finish all that it has.
    if (next.defined()) ready = receive(actions[i + 1], next, begin);
  }
  CHECK(own_activations_.empty() && own_gradients_.empty(), "a pipeline message is left over");
  for (const PipelineLink* link : {links_.activations_out(), links_.gradients_out()})
    if (link != nullptr) compute_.wait(link->stream->record());
}

}  // namespace ferry
