#include "core/recording.h"

#include "core/check.h"

namespace ferry {

bool RecordedEvent::ready() const {
  fail(ExitCode::Internal, "an event of a graph of stream '", recording->stream(),
       "' is asked whether it is ready: its work is recorded, not done");
}

void RecordedEvent::wait_host() const {
  fail(ExitCode::Internal, "the host waits for an event of a graph of stream '",
       recording->stream(), "': its work is recorded, not done");
}

}  // namespace ferry
