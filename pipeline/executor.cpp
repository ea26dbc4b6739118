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

Executor::Message Executor::start_receive(const Action& action, const MessageType& message,
                                          const Event& may_start) {
  const PipelineLink* link = is_forward(action) ? links_.activations_in() : links_.gradients_in();
  CHECK(link != nullptr, "no link for the message of ", text(action));
  Stream& stream = *link->stream;
  stream.wait(may_start);
  const Tensor tensor = Tensor::empty(stream, "pipeline messages", message.shape, message.dtype);
  link->group->receive(stream, tensor, link->peer);
  return {tensor, stream.record()};
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
  link->stream->hold(tensor);
}

void Executor::run(std::span<const Action> actions, const MessageType& message, StageWork& work) {
  own_activations_.clear();
  own_gradients_.clear();
  const auto receive_for = [&](size_t i, const Event& may_start) {
    if (links_.size() == 1 || i == actions.size() || !receives(actions[i])) return Message();
    return start_receive(actions[i], message, may_start);
  };
  Message next = receive_for(0, compute_.record());
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    CHECK(action.chunk >= 0 && action.chunk < links_.num_chunks(), "no chunk for ", text(action));
    Tensor input = std::move(next.tensor);
    if (input.defined()) {
      compute_.wait(next.ready);
      compute_.hold(input);
    } else if (receives(action)) {
      std::deque<Tensor>& messages = own_messages(action);
      CHECK(!messages.empty(), "no message for ", text(action));
      input = std::move(messages.front());
      messages.pop_front();
    }
    // The next message may come while this action runs, not sooner: the memory is not needed.
    const Event begin = compute_.record();
    const Tensor output = is_forward(action) ? work.forward(action.chunk, action.micro, input)
                                             : work.backward(action.chunk, action.micro, input);
    if (sends(action)) {
      check_message(action, message, output);
      send(action, output);
    }
    // Enqueued last, so that what is enqueued never waits for what is not: if the host has to wait
    // for the device in the middle of an action (memory, the loading of a kernel, counts of rows),
    // the device can finish all that it has.
    next = receive_for(i + 1, begin);
  }
  CHECK(own_activations_.empty() && own_gradients_.empty(), "a pipeline message is left over");
  for (const PipelineLink* link : {links_.activations_out(), links_.gradients_out()})
    if (link != nullptr) compute_.wait(link->stream->record());
}

}  // namespace ferry
