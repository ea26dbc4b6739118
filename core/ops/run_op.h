#pragma once

// How an op reaches its backend: a CPU op becomes a task of the stream that keeps copies of its
// arguments, so that its tensors stay alive; a CUDA op launches its kernels at once.

#include "core/device.h"
#include "core/stream_cpu.h"
#include "core/tensor.h"

namespace ferry {

/// run_op(stream, cpu::add, cuda::add, y, a, b): the two functions have the same parameters, but
/// that of CUDA has the stream first.
template <class... Parameters, class... Arguments>
void run_op(Stream& stream, void (*cpu)(Parameters...), void (*cuda)(Stream&, Parameters...),
            const Arguments&... arguments) {
  if (stream.device().is_cpu()) {
    enqueue_cpu(stream, [=] { cpu(arguments...); });
  } else {
    cuda(stream, arguments...);
  }
}

}  // namespace ferry
