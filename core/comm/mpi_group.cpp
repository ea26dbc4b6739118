#include "core/comm/mpi_group.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "core/comm/mpi_call.h"
#include "core/stream_cpu.h"

namespace ferry {
namespace {

// Sums of long tensors are made in pieces that stay in the cache: MPI otherwise makes a second copy
// of the whole tensor. 2^18 was twice as fast as one call for 64 MiB on two ranks of one host.
constexpr int64_t kSumCount = int64_t{1} << 18;

void sum_bf16(void* in, void* inout, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const BFloat16*>(in);
  auto* b = static_cast<BFloat16*>(inout);
  for (int i = 0; i < *count; ++i)
    b[i] = BFloat16(static_cast<float>(a[i]) + static_cast<float>(b[i]));
}

void max_bf16(void* in, void* inout, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const BFloat16*>(in);
  auto* b = static_cast<BFloat16*>(inout);
  for (int i = 0; i < *count; ++i)
    if (static_cast<float>(a[i]) > static_cast<float>(b[i])) b[i] = a[i];
}

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return MPI_FLOAT;
    case DType::F64:
      return MPI_DOUBLE;
    case DType::I32:
      return MPI_INT32_T;
    case DType::I64:
      return MPI_INT64_T;
    case DType::U8:
      return MPI_UINT8_T;
    case DType::BF16:
      return MPI_UINT16_T;
  }
  fail(ExitCode::Internal, "MPI has no type for ", name_of(dtype));
}

MPI_Op create_op(MPI_User_function* function) {
  MPI_Op op = MPI_OP_NULL;
  check_mpi(MPI_Op_create(function, 1, &op), "MPI_Op_create");
  return op;
}

MPI_Op mpi_op(DType dtype, ReduceOp op) {
  if (dtype != DType::BF16) return op == ReduceOp::Sum ? MPI_SUM : MPI_MAX;
  static const MPI_Op sum = create_op(sum_bf16);
  static const MPI_Op max = create_op(max_bf16);
  return op == ReduceOp::Sum ? sum : max;
}

int64_t row_elements(const Tensor& tensor) {
  int64_t elements = 1;
  for (int i = 1; i < tensor.shape().rank(); ++i) elements *= tensor.dim(i);
  return elements;
}

std::byte* element(const Tensor& tensor, int64_t index) {
  return static_cast<std::byte*>(tensor.raw()) +
         index * static_cast<int64_t>(size_of(tensor.dtype()));
}

// MPI may still write to the buffers of a call that was given up.
void keep_forever(const Tensor& out, const Tensor& in) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<Tensor>;
  std::lock_guard lock(mutex);
  kept->push_back(out);
  kept->push_back(in);
}

// Rows of each rank in an all_to_all, in elements.
struct Layout {
  std::vector<int> counts, offsets;
};

Layout layout(const Tensor& tensor, std::span<const int64_t> rows, const std::string& text) {
  const auto narrow = [&](int64_t count) {
    CHECK(count >= 0 && count <= std::numeric_limits<int>::max(), text, ": ", count,
          " elements do not fit into an MPI count");
    return static_cast<int>(count);
  };
  Layout result;
  int64_t offset = 0;
  for (const int64_t count : rows) {
    result.counts.push_back(narrow(count * row_elements(tensor)));
    result.offsets.push_back(narrow(offset));
    offset += count * row_elements(tensor);
  }
  CHECK(offset <= tensor.numel(), text, ": counts exceed ", tensor.shape());
  return result;
}

class MpiGroup final : public Group {
 public:
  MpiGroup(MPI_Comm owned, std::string name, const MpiLimits& limits)
      : comm_(owned),
        rank_(comm_.rank()),
        size_(comm_.size()),
        name_(std::move(name)),
        limits_(limits),
        host_(make_cpu_device()) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }

  void all_reduce(Stream& stream, const Tensor& tensor, ReduceOp op) override {
    const std::string text = what("all_reduce", tensor);
    run(kCollectives, stream, tensor, tensor, [=, this](const Tensor& out, const Tensor&) {
      in_pieces(out.numel(), std::min(limits_.max_count, kSumCount), [&](int64_t at, int count) {
        complete(text, [&](MPI_Request* request) {
          return MPI_Iallreduce(MPI_IN_PLACE, element(out, at), count, mpi_type(out.dtype()),
                                mpi_op(out.dtype(), op), comm_.get(), request);
        });
      });
    });
  }

  void all_gather(Stream& stream, const Tensor& all, const Tensor& own) override {
    check_all_gather(all, own);
    const std::string text = what("all_gather", all);
    run(kCollectives, stream, all, own, [=, this](const Tensor& out, const Tensor& in) {
      const int64_t part = in.numel();
      const bool in_place = in.raw() == element(out, rank_ * part);
      const MPI_Datatype type = mpi_type(in.dtype());
      if (out.numel() <= limits_.max_count) {
        const int count = static_cast<int>(part);
        complete(text, [&](MPI_Request* request) {
          return MPI_Iallgather(in_place ? MPI_IN_PLACE : in.raw(), count, type, out.raw(), count,
                                type, comm_.get(), request);
        });
        return;
      }
      if (!in_place)
        std::memcpy(element(out, rank_ * part), in.raw(), static_cast<size_t>(in.bytes()));
      for (int root = 0; root < size_; ++root)
        in_pieces(part, limits_.max_count, [&](int64_t at, int count) {
          complete(text, [&](MPI_Request* request) {
            return MPI_Ibcast(element(out, root * part + at), count, type, root, comm_.get(),
                              request);
          });
        });
    });
  }

  void reduce_scatter(Stream& stream, const Tensor& own, const Tensor& all) override {
    check_reduce_scatter(own, all);
    const std::string text = what("reduce_scatter", all);
    run(kCollectives, stream, own, all, [=, this](const Tensor& out, const Tensor& in) {
      const int64_t part = out.numel();
      const bool in_place = out.raw() == element(in, rank_ * part);
      const MPI_Datatype type = mpi_type(in.dtype());
      const MPI_Op sum = mpi_op(in.dtype(), ReduceOp::Sum);
      // The one call of MPI for this cannot have its output inside its input.
      if (in.numel() <= limits_.max_count && !in_place) {
        const int count = static_cast<int>(part);
        complete(text, [&](MPI_Request* request) {
          return MPI_Ireduce_scatter_block(in.raw(), out.raw(), count, type, sum, comm_.get(),
                                           request);
        });
        return;
      }
      for (int root = 0; root < size_; ++root)
        in_pieces(part, limits_.max_count, [&](int64_t at, int count) {
          complete(text, [&](MPI_Request* request) {
            void* from = element(in, root * part + at);
            void* to = root == rank_ ? element(out, at) : nullptr;
            return MPI_Ireduce(from == to ? MPI_IN_PLACE : from, to, count, type, sum, root,
                               comm_.get(), request);
          });
        });
    });
  }

  void broadcast(Stream& stream, const Tensor& tensor, int root) override {
    check_rank(root);
    const std::string text = what("broadcast", tensor);
    run(kCollectives, stream, tensor, tensor, [=, this](const Tensor& out, const Tensor&) {
      in_pieces(out.numel(), limits_.max_count, [&](int64_t at, int count) {
        complete(text, [&](MPI_Request* request) {
          return MPI_Ibcast(element(out, at), count, mpi_type(out.dtype()), root, comm_.get(),
                            request);
        });
      });
    });
  }

  void all_to_all(Stream& stream, const Tensor& receive, std::span<const int64_t> receive_rows,
                  const Tensor& send, std::span<const int64_t> send_rows) override {
    check_all_to_all(receive, receive_rows, send, send_rows);
    const std::string text = what("all_to_all", send);
    const Layout to = layout(receive, receive_rows, text), from = layout(send, send_rows, text);
    run(kCollectives, stream, receive, send, [=, this](const Tensor& out, const Tensor& in) {
      complete(text, [&](MPI_Request* request) {
        return MPI_Ialltoallv(in.raw(), from.counts.data(), from.offsets.data(),
                              mpi_type(in.dtype()), out.raw(), to.counts.data(), to.offsets.data(),
                              mpi_type(out.dtype()), comm_.get(), request);
      });
    });
  }

  void send(Stream& stream, const Tensor& tensor, int peer) override {
    check_rank(peer);
    const std::string text = what("send", tensor);
    run(2 * peer, stream, {}, tensor, [=, this](const Tensor&, const Tensor& in) {
      in_pieces(in.numel(), limits_.max_count, [&](int64_t at, int count) {
        complete(text, [&](MPI_Request* request) {
          return MPI_Isend(element(in, at), count, mpi_type(in.dtype()), peer, 0, comm_.get(),
                           request);
        });
      });
    });
  }

  void receive(Stream& stream, const Tensor& tensor, int peer) override {
    check_rank(peer);
    const std::string text = what("receive", tensor);
    run(2 * peer + 1, stream, tensor, {}, [=, this](const Tensor& out, const Tensor&) {
      in_pieces(out.numel(), limits_.max_count, [&](int64_t at, int count) {
        complete(text, [&](MPI_Request* request) {
          return MPI_Irecv(element(out, at), count, mpi_type(out.dtype()), peer, 0, comm_.get(),
                           request);
        });
      });
    });
  }

  std::unique_ptr<Group> split(int color, const std::string& name) override {
    MPI_Comm part = MPI_COMM_NULL;
    const std::string text = concat("split of group ", name_, " into ", name, " on rank ", rank_);
    // After the collectives that are under way on this communicator, and on their thread.
    Stream& own = lane(kCollectives);
    enqueue_cpu(own, [&] {
      // The split itself has no deadline, so all ranks meet before it.
      complete(text, [&](MPI_Request* request) { return MPI_Ibarrier(comm_.get(), request); });
      check_mpi(MPI_Comm_split(comm_.get(), color < 0 ? MPI_UNDEFINED : color, rank_, &part), text);
    });
    own.synchronize();
    if (part == MPI_COMM_NULL) return nullptr;
    return std::make_unique<MpiGroup>(part, name, limits_);
  }

 private:
  static constexpr int kCollectives = -1;

  void check_rank(int rank) const {
    CHECK(rank >= 0 && rank < size_, "group ", name_, " has no rank ", rank);
  }

  std::string what(const char* op, const Tensor& tensor) const {
    return concat(op, " on group ", name_, " rank ", rank_, '/', size_, " of ", tensor.bytes(),
                  " bytes");
  }

  template <class Start>
  void complete(const std::string& text, Start start) {
    complete_mpi(start, text, limits_.timeout_s);
  }

  template <class Call>
  static void in_pieces(int64_t numel, int64_t max_count, Call call) {
    for (int64_t at = 0; at < numel; at += max_count)
      call(at, static_cast<int>(std::min(max_count, numel - at)));
  }

  // The stream that a kind of call runs on: collectives, 2 * peer (send) or 2 * peer + 1 (receive).
  Stream& lane(int key) {
    std::unique_ptr<Stream>& stream = lanes_[key];
    if (!stream) stream = host_->make_stream("mpi " + name_);
    return *stream;
  }

  // Runs `call(out, in)` on a lane with host tensors. `out` may be the same memory as `in`, or one
  // may hold the other; either may be undefined.
  template <class Call>
  void run(int key, Stream& stream, const Tensor& out, const Tensor& in, Call call) {
    Tensor host_in = in, host_out = out;
    const bool on_cpu = stream.device().is_cpu();
    if (!on_cpu) {
      const auto staging = [&](const Tensor& like) {
        return Tensor::host(stream.device(), "staged collectives", like.shape(), like.dtype());
      };
      if (in.defined()) {
        host_in = staging(in);
        stream.copy(host_in, in);
      }
      const bool in_place = out.defined() && in.defined() && out.same_memory(in);
      if (out.defined()) host_out = in_place ? host_in : staging(out);
    }
    Stream& own = lane(key);
    own.wait(stream.record_for_host());
    enqueue_cpu(own, [call, host_out, host_in] {
      try {
        call(host_out, host_in);
      } catch (...) {
        keep_forever(host_out, host_in);
        throw;
      }
    });
    stream.wait(own.record());
    if (!on_cpu && out.defined()) stream.copy(out, host_out);
  }

  MpiCommunicator comm_;
  int rank_;
  int size_;
  std::string name_;
  MpiLimits limits_;
  std::unique_ptr<Device> host_;
  std::map<int, std::unique_ptr<Stream>> lanes_;  // last: end before what their tasks use
};

}  // namespace

std::unique_ptr<Group> make_mpi_group(MPI_Comm comm, const std::string& name,
                                      const MpiLimits& limits) {
  return std::make_unique<MpiGroup>(MpiCommunicator::duplicate(comm), name, limits);
}

}  // namespace ferry
