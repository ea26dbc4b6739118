#include "pipeline/schedule.h"

#include <algorithm>

#include "core/check.h"

namespace ferry {
namespace {

// The order of all passes of one kind: groups of micro-batches, each through all chunks in turn. A
// backward pass meets the chunks in reverse.
std::vector<Action> passes(Action::Kind kind, const ScheduleShape& shape, int group) {
  std::vector<Action> actions;
  for (int begin = 0; begin < shape.num_micro; begin += group) {
    const int end = std::min(begin + group, shape.num_micro);
    for (int i = 0; i < shape.num_chunks; ++i) {
      const int chunk = kind == Action::Kind::Forward ? i : shape.num_chunks - 1 - i;
      for (int micro = begin; micro < end; ++micro) actions.push_back({kind, chunk, micro});
    }
  }
  return actions;
}

void check_interleaved(const ScheduleShape& shape, int group) {
  const auto refuse = [&](const std::string& why, const std::string& fix) {
    fail(ExitCode::Usage, "no interleaved pipeline schedule of ", shape.num_ranks, " ranks, ",
         shape.num_chunks, " virtual stages and ", shape.num_micro, " micro-batches in groups of ",
         group, "\n  why : ", why, "\n  try : ", fix);
  };
  if (group > shape.num_micro)
    refuse(concat("a step has only ", shape.num_micro, " micro-batches"),
           concat("at least ", shape.num_ranks, " micro-batches, or one virtual stage"));
  if (group < shape.num_ranks)
    refuse(concat("ranks would wait for each other with fewer than ", shape.num_ranks, " in a row"),
           concat("groups of ", shape.num_ranks));
  const int rest = shape.num_micro % group;
  if (rest > 0 && rest < shape.num_ranks)
    refuse(concat("the last group has ", rest, ", fewer than there are ranks"),
           concat("a number of micro-batches that ", group, " divides"));
}

// Forward passes before the first backward pass.
int num_warm_up(const ScheduleShape& shape, int rank, int group) {
  const int all = shape.num_micro * shape.num_chunks;
  const int behind = shape.num_ranks - 1 - rank;
  switch (shape.kind) {
    case ScheduleKind::OneForwardOneBackward:
      return std::min(all, behind);
    case ScheduleKind::Interleaved:
      return std::min(all, 2 * behind + (shape.num_chunks - 1) * group);
    case ScheduleKind::GPipe:
    case ScheduleKind::ForwardOnly:
      return all;
  }
  fail(ExitCode::Internal, "unknown kind of schedule");
}

const char* kind_text(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::GPipe:
      return "GPipe";
    case ScheduleKind::OneForwardOneBackward:
      return "1F1B";
    case ScheduleKind::Interleaved:
      return "interleaved 1F1B";
    case ScheduleKind::ForwardOnly:
      return "forward only";
  }
  fail(ExitCode::Internal, "unknown kind of schedule");
}

int group_of(const ScheduleShape& shape) {
  return shape.group == 0 ? shape.num_ranks : shape.group;
}

}  // namespace

ScheduleKind usual_schedule(int num_chunks) {
  return num_chunks > 1 ? ScheduleKind::Interleaved : ScheduleKind::OneForwardOneBackward;
}

std::vector<Action> make_schedule(const ScheduleShape& shape, int rank) {
  CHECK(shape.num_ranks >= 1 && shape.num_chunks >= 1 && shape.num_micro >= 1 && shape.group >= 0,
        shape.num_ranks, " ranks, ", shape.num_chunks, " chunks, ", shape.num_micro,
        " micro-batches, groups of ", shape.group);
  CHECK(rank >= 0 && rank < shape.num_ranks, "rank ", rank, " of ", shape.num_ranks);
  CHECK(shape.kind != ScheduleKind::OneForwardOneBackward || shape.num_chunks == 1,
        shape.num_chunks, " chunks need an interleaved schedule");
  const int group = group_of(shape);
  if (shape.kind == ScheduleKind::Interleaved) check_interleaved(shape, group);
  std::vector<Action> actions = passes(Action::Kind::Forward, shape, group);
  if (shape.kind == ScheduleKind::ForwardOnly) return actions;

  const std::vector<Action> forward = std::move(actions);
  const std::vector<Action> backward = passes(Action::Kind::Backward, shape, group);
  const size_t ahead = static_cast<size_t>(num_warm_up(shape, rank, group));
  actions.assign(forward.begin(), forward.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (size_t i = 0; i < backward.size(); ++i) {
    if (ahead + i < forward.size()) actions.push_back(forward[ahead + i]);
    actions.push_back(backward[i]);
  }
  return actions;
}

std::vector<std::vector<Action>> make_schedules(const ScheduleShape& shape) {
  std::vector<std::vector<Action>> schedules;
  for (int rank = 0; rank < shape.num_ranks; ++rank)
    schedules.push_back(make_schedule(shape, rank));
  return schedules;
}

std::string action_text(const Action& action, int num_chunks) {
  const char kind = action.kind == Action::Kind::Forward ? 'F' : 'B';
  if (num_chunks == 1) return concat(kind, action.micro);
  return concat(kind, action.micro, '.', action.chunk);
}

std::string schedule_text(const ScheduleShape& shape,
                          const std::vector<std::vector<Action>>& schedules, int max_actions) {
  std::string text = concat(kind_text(shape.kind), ", ranks: ", shape.num_ranks,
                            ", micro-batches: ", shape.num_micro);
  if (shape.num_chunks > 1)
    text += concat(" in groups of ", group_of(shape), ", chunks per rank: ", shape.num_chunks);
  text += shape.num_chunks > 1 ? "\nF3.1: micro-batch 3 forward through chunk 1; B: backward\n"
                               : "\nF3: micro-batch 3 forward; B: backward\n";
  const size_t width = std::to_string(schedules.size() - 1).size();
  for (size_t rank = 0; rank < schedules.size(); ++rank) {
    const std::string number = std::to_string(rank);
    text += "rank " + std::string(width - number.size(), ' ') + number + " ";
    const std::vector<Action>& actions = schedules[rank];
    const size_t limit = static_cast<size_t>(max_actions);
    const size_t left_out =
        max_actions == 0 || actions.size() <= limit ? 0 : actions.size() - limit;
    const size_t gap = actions.size() - left_out - (left_out == 0 ? 0 : limit / 2);
    for (size_t i = 0; i < actions.size(); ++i) {
      if (left_out > 0 && i == gap) text += concat(" ...", left_out, " more...");
      if (left_out == 0 || i < gap || i >= gap + left_out)
        text += ' ' + action_text(actions[i], shape.num_chunks);
    }
    text += '\n';
  }
  return text;
}

}  // namespace ferry
