#include "core/comm/mpi_group.h"

#include <algorithm>
#include <limits>

#include "core/comm/mpi_call.h"
#include "core/stream_cpu.h"

namespace ferry {
namespace {

// MPI counts are ints; longer messages go in pieces.
constexpr int64_t kMaxCount = int64_t{1} << 30;

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
    case DType::F32: return MPI_FLOAT;
    case DType::F64: return MPI_DOUBLE;
    case DType::I32: return MPI_INT32_T;
    case DType::I64: return MPI_INT64_T;
    case DType::U8: return MPI_UINT8_T;
    case DType::BF16: return MPI_UINT16_T;
  }
  return MPI_DATATYPE_NULL;
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

class MpiGroup final : public Group {
 public:
  MpiGroup(MPI_Comm owned, std::string name)
      : comm_(std::make_shared<MpiCommunicator>(owned)),
        rank_(comm_->rank()),
        size_(comm_->size()),
        name_(std::move(name)),
        host_(make_cpu_device()),
        own_stream_(host_->make_stream("mpi " + name_)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }

  void all_reduce(Stream& stream, const Tensor& tensor, ReduceOp op) override {
    staged(stream, tensor, tensor, what("all_reduce", tensor),
           [comm = comm_, op](const Tensor& out, const Tensor&, const std::string& text) {
             for (int64_t at = 0; at < out.numel(); at += kMaxCount) {
               const auto count = static_cast<int>(std::min(kMaxCount, out.numel() - at));
               void* data = element(out, at);
               complete_mpi(
                   [&](MPI_Request* request) {
                     return MPI_Iallreduce(MPI_IN_PLACE, data, count, mpi_type(out.dtype()),
                                           mpi_op(out.dtype(), op), comm->get(), request);
                   },
                   text);
             }
           });
  }

  void all_gather(Stream& stream, const Tensor& all, const Tensor& own) override {
    CHECK(all.numel() == own.numel() * size_ && all.dtype() == own.dtype(), "all_gather of ",
          own.shape(), " to ", all.shape());
    staged(stream, all, own, what("all_gather", all),
           [comm = comm_](const Tensor& out, const Tensor& in, const std::string& text) {
             const int count = narrow(in.numel(), text);
             complete_mpi(
                 [&](MPI_Request* request) {
                   return MPI_Iallgather(in.raw(), count, mpi_type(in.dtype()), out.raw(), count,
                                         mpi_type(in.dtype()), comm->get(), request);
                 },
                 text);
           });
  }

  void reduce_scatter(Stream& stream, const Tensor& own, const Tensor& all) override {
    CHECK(all.numel() == own.numel() * size_ && all.dtype() == own.dtype(), "reduce_scatter of ",
          all.shape(), " to ", own.shape());
    staged(stream, own, all, what("reduce_scatter", all),
           [comm = comm_](const Tensor& out, const Tensor& in, const std::string& text) {
             const int count = narrow(out.numel(), text);
             complete_mpi(
                 [&](MPI_Request* request) {
                   return MPI_Ireduce_scatter_block(in.raw(), out.raw(), count,
                                                    mpi_type(in.dtype()),
                                                    mpi_op(in.dtype(), ReduceOp::Sum),
                                                    comm->get(), request);
                 },
                 text);
           });
  }

  void broadcast(Stream& stream, const Tensor& tensor, int root) override {
    staged(stream, tensor, tensor, what("broadcast", tensor),
           [comm = comm_, root](const Tensor& out, const Tensor&, const std::string& text) {
             for (int64_t at = 0; at < out.numel(); at += kMaxCount) {
               const auto count = static_cast<int>(std::min(kMaxCount, out.numel() - at));
               void* data = element(out, at);
               complete_mpi(
                   [&](MPI_Request* request) {
                     return MPI_Ibcast(data, count, mpi_type(out.dtype()), root, comm->get(),
                                       request);
                   },
                   text);
             }
           });
  }

  void all_to_all(Stream& stream, const Tensor& receive, std::span<const int64_t> receive_rows,
                  const Tensor& send, std::span<const int64_t> send_rows) override {
    CHECK(static_cast<int>(receive_rows.size()) == size_ &&
              static_cast<int>(send_rows.size()) == size_,
          "all_to_all needs a count for each of ", size_, " ranks");
    CHECK(receive.dtype() == send.dtype(), "all_to_all between dtypes");
    const std::string text = what("all_to_all", send);
    const Layout out = layout(receive, receive_rows, text), in = layout(send, send_rows, text);
    staged(stream, receive, send, text,
           [comm = comm_, out, in](const Tensor& to, const Tensor& from, const std::string& name) {
             complete_mpi(
                 [&](MPI_Request* request) {
                   return MPI_Ialltoallv(from.raw(), in.counts.data(), in.offsets.data(),
                                         mpi_type(from.dtype()), to.raw(), out.counts.data(),
                                         out.offsets.data(), mpi_type(to.dtype()), comm->get(),
                                         request);
                 },
                 name);
           });
  }

  void send(Stream& stream, const Tensor& tensor, int peer) override {
    staged(stream, {}, tensor, what("send", tensor),
           [comm = comm_, peer](const Tensor&, const Tensor& in, const std::string& text) {
             for (int64_t at = 0; at < in.numel(); at += kMaxCount) {
               const auto count = static_cast<int>(std::min(kMaxCount, in.numel() - at));
               complete_mpi(
                   [&](MPI_Request* request) {
                     return MPI_Isend(element(in, at), count, mpi_type(in.dtype()), peer, 0,
                                      comm->get(), request);
                   },
                   text);
             }
           });
  }

  void receive(Stream& stream, const Tensor& tensor, int peer) override {
    staged(stream, tensor, {}, what("receive", tensor),
           [comm = comm_, peer](const Tensor& out, const Tensor&, const std::string& text) {
             for (int64_t at = 0; at < out.numel(); at += kMaxCount) {
               const auto count = static_cast<int>(std::min(kMaxCount, out.numel() - at));
               complete_mpi(
                   [&](MPI_Request* request) {
                     return MPI_Irecv(element(out, at), count, mpi_type(out.dtype()), peer, 0,
                                      comm->get(), request);
                   },
                   text);
             }
           });
  }

  std::unique_ptr<Group> split(int color, const std::string& name) override {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(comm_->get(), color < 0 ? MPI_UNDEFINED : color, rank_, &part),
              "MPI_Comm_split of " + name_);
    if (part == MPI_COMM_NULL) return nullptr;
    check_mpi(MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return std::make_unique<MpiGroup>(part, name);
  }

 private:
  struct Layout {
    std::vector<int> counts, offsets;
  };

  static void* element(const Tensor& tensor, int64_t index) {
    return static_cast<std::byte*>(tensor.raw()) +
           index * static_cast<int64_t>(size_of(tensor.dtype()));
  }

  static int narrow(int64_t count, const std::string& text) {
    CHECK(count <= std::numeric_limits<int>::max(), text, ": ", count,
          " elements of one rank are more than an MPI count holds");
    return static_cast<int>(count);
  }

  static Layout layout(const Tensor& tensor, std::span<const int64_t> rows,
                       const std::string& text) {
    Layout result;
    int64_t offset = 0;
    for (const int64_t count : rows) {
      result.counts.push_back(narrow(count * row_elements(tensor), text));
      result.offsets.push_back(narrow(offset, text));
      offset += count * row_elements(tensor);
    }
    CHECK(offset <= tensor.numel(), text, ": counts exceed ", tensor.shape());
    return result;
  }

  std::string what(const char* op, const Tensor& tensor) const {
    return concat(op, " on group ", name_, " rank ", rank_, '/', size_, " of ", tensor.bytes(),
                  " bytes");
  }

  // Runs `call(out, in, text)` with host tensors. `out` may be the same memory as `in`; either may
  // be undefined.
  template <class Call>
  void staged(Stream& stream, const Tensor& out, const Tensor& in, const std::string& text,
              Call call) {
    if (stream.device().is_cpu()) {
      enqueue_cpu(stream, [=] { call(out, in, text); });
      return;
    }
    const bool in_place = out.defined() && in.defined() && out.same_memory(in);
    Tensor host_in, host_out;
    if (in.defined()) {
      host_in = Tensor::host(stream.device(), "staged collectives", in.shape(), in.dtype());
      stream.copy(host_in, in);
    }
    if (out.defined())
      host_out = in_place ? host_in
                          : Tensor::host(stream.device(), "staged collectives", out.shape(),
                                         out.dtype());
    own_stream_->wait(stream.record());
    enqueue_cpu(*own_stream_, [=] { call(host_out, host_in, text); });
    stream.wait(own_stream_->record());
    if (out.defined()) stream.copy(out, host_out);
  }

  std::shared_ptr<MpiCommunicator> comm_;
  int rank_;
  int size_;
  std::string name_;
  std::unique_ptr<Device> host_;
  std::unique_ptr<Stream> own_stream_;  // last: ends before what its tasks use
};

}  // namespace

std::unique_ptr<Group> make_mpi_group(MPI_Comm comm, const std::string& name) {
  return std::make_unique<MpiGroup>(MpiCommunicator::duplicate(comm), name);
}

}  // namespace ferry
