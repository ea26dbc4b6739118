#include "core/comm/nccl_group.h"

#include <nccl.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "core/check.h"
#include "core/check_cuda.h"
#include "core/comm/nccl_communicator.h"
#include "core/device_cuda.h"
#include "core/stream_cuda.h"

namespace ferry {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return ncclFloat32;
    case DType::F64:
      return ncclFloat64;
    case DType::BF16:
      return ncclBfloat16;
    case DType::I32:
      return ncclInt32;
    case DType::I64:
      return ncclInt64;
    case DType::U8:
      return ncclUint8;
  }
  fail(ExitCode::Internal, "NCCL has no type for ", name_of(dtype));
}

size_t count_of(const Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

class NcclGroup final : public Group {
 public:
  NcclGroup(std::unique_ptr<NcclCommunicator> comm, int rank, int size, std::string name)
      : comm_(std::move(comm)), rank_(rank), size_(size), name_(std::move(name)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }

  void all_reduce(Stream& stream, const Tensor& tensor, ReduceOp op) override {
    if (tensor.numel() == 0) return;
    const cudaStream_t cuda = cuda_handle(stream);
    comm_->enqueue(stream, what("all_reduce", tensor), {tensor}, [&] {
      return ncclAllReduce(tensor.raw(), tensor.raw(), count_of(tensor), nccl_type(tensor.dtype()),
                           op == ReduceOp::Sum ? ncclSum : ncclMax, comm_->get(), cuda);
    });
  }

  void all_gather(Stream& stream, const Tensor& all, const Tensor& own) override {
    check_all_gather(all, own);
    if (own.numel() == 0) return;
    const cudaStream_t cuda = cuda_handle(stream);
    comm_->enqueue(stream, what("all_gather", all), {all, own}, [&] {
      return ncclAllGather(own.raw(), all.raw(), count_of(own), nccl_type(own.dtype()),
                           comm_->get(), cuda);
    });
  }

  void reduce_scatter(Stream& stream, const Tensor& own, const Tensor& all) override {
    check_reduce_scatter(own, all);
    if (own.numel() == 0) return;
    const cudaStream_t cuda = cuda_handle(stream);
    comm_->enqueue(stream, what("reduce_scatter", all), {all, own}, [&] {
      return ncclReduceScatter(all.raw(), own.raw(), count_of(own), nccl_type(own.dtype()), ncclSum,
                               comm_->get(), cuda);
    });
  }

  void broadcast(Stream& stream, const Tensor& tensor, int root) override {
    check_peer(root);
    if (tensor.numel() == 0) return;
    const cudaStream_t cuda = cuda_handle(stream);
    comm_->enqueue(stream, what("broadcast", tensor), {tensor}, [&] {
      return ncclBroadcast(tensor.raw(), tensor.raw(), count_of(tensor), nccl_type(tensor.dtype()),
                           root, comm_->get(), cuda);
    });
  }

  void all_to_all(Stream& stream, const Tensor& receive, std::span<const int64_t> receive_rows,
                  const Tensor& send, std::span<const int64_t> send_rows) override {
    check_all_to_all(receive, receive_rows, send, send_rows);
    const std::string text = what("all_to_all", send);
    const std::vector<Piece> in = pieces(receive, receive_rows, text);
    const std::vector<Piece> out = pieces(send, send_rows, text);
    const ncclDataType_t type = nccl_type(send.dtype());
    const cudaStream_t cuda = cuda_handle(stream);
    comm_->enqueue(stream, text, {receive, send}, [&] {
      ncclResult_t result = ncclGroupStart();
      for (int peer = 0; peer < size_; ++peer) {
        const Piece& to = out[static_cast<size_t>(peer)];
        const Piece& from = in[static_cast<size_t>(peer)];
        if (result == ncclSuccess && to.count > 0)
          result = ncclSend(to.data, to.count, type, peer, comm_->get(), cuda);
        if (result == ncclSuccess && from.count > 0)
          result = ncclRecv(from.data, from.count, type, peer, comm_->get(), cuda);
      }
      const ncclResult_t end = ncclGroupEnd();
      return result == ncclSuccess ? end : result;
    });
  }

  void send(Stream& stream, const Tensor& tensor, int peer) override {
    check_peer(peer);
    if (tensor.numel() == 0) return;
    const cudaStream_t cuda = cuda_handle(stream);
    comm_->enqueue(stream, what("send", tensor), {tensor}, [&] {
      return ncclSend(tensor.raw(), count_of(tensor), nccl_type(tensor.dtype()), peer, comm_->get(),
                      cuda);
    });
  }

  void receive(Stream& stream, const Tensor& tensor, int peer) override {
    check_peer(peer);
    if (tensor.numel() == 0) return;
    const cudaStream_t cuda = cuda_handle(stream);
    comm_->enqueue(stream, what("receive", tensor), {tensor}, [&] {
      return ncclRecv(tensor.raw(), count_of(tensor), nccl_type(tensor.dtype()), peer, comm_->get(),
                      cuda);
    });
  }

  std::unique_ptr<Group> split(int color, const std::string& name) override {
    auto part = std::make_unique<NcclCommunicator>(comm_->device(), comm_->timeout_s());
    const std::string text = concat("split of group ", name_, " into ", name);
    part->make(text, [whole = comm_->get(), color, rank = rank_](ncclComm_t* comm) {
      return ncclCommSplit(whole, color < 0 ? NCCL_SPLIT_NOCOLOR : color, rank, comm, nullptr);
    });
    if (color < 0) return nullptr;
    int rank = 0, size = 0;
    part->ask(text, [&] { return ncclCommUserRank(part->get(), &rank); });
    part->ask(text, [&] { return ncclCommCount(part->get(), &size); });
    return std::make_unique<NcclGroup>(std::move(part), rank, size, name);
  }

 private:
  struct Piece {
    void* data;
    size_t count;
  };

  void check_peer(int peer) const {
    CHECK(peer >= 0 && peer < size_, "group ", name_, " has no rank ", peer);
  }

  // The rows of each rank.
  static std::vector<Piece> pieces(const Tensor& tensor, std::span<const int64_t> rows,
                                   const std::string& text) {
    int64_t row_elements = 1;
    for (int i = 1; i < tensor.shape().rank(); ++i) row_elements *= tensor.dim(i);
    std::vector<Piece> result;
    int64_t offset = 0;
    for (const int64_t count : rows) {
      CHECK(count >= 0, text, ": ", count, " rows for a rank");
      result.push_back({static_cast<std::byte*>(tensor.raw()) +
                            offset * static_cast<int64_t>(size_of(tensor.dtype())),
                        static_cast<size_t>(count * row_elements)});
      offset += count * row_elements;
    }
    CHECK(offset <= tensor.numel(), text, ": counts exceed ", tensor.shape());
    return result;
  }

  std::string what(const char* op, const Tensor& tensor) const {
    return concat(op, " on group ", name_, " rank ", rank_, '/', size_, " of ", tensor.bytes(),
                  " bytes");
  }

  std::unique_ptr<NcclCommunicator> comm_;
  int rank_;
  int size_;
  std::string name_;
};

std::string to_hex(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

ncclUniqueId from_hex(const std::string& text) {
  ncclUniqueId id{};
  CHECK(text.size() == 2 * sizeof(id.internal), "an NCCL id of ", text.size(), " digits");
  for (size_t i = 0; i < sizeof(id.internal); ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

// Rank 0 makes the id; if it cannot, all ranks fail with its reason.
ncclUniqueId agree_on_id(Control& control, const std::string& name) {
  constexpr char kNoId = '!';
  std::string text;
  if (control.rank() == 0) {
    ncclUniqueId id{};
    const ncclResult_t result = ncclGetUniqueId(&id);
    text = result == ncclSuccess
               ? to_hex(id)
               : concat(kNoId, ncclGetErrorString(result), ": ", ncclGetLastError(nullptr));
  }
  text = control.broadcast(text, 0, "NCCL id of group " + name);
  if (text.starts_with(kNoId))
    fail(ExitCode::Resource, "group ", name, ": rank 0 cannot start NCCL: ", text.substr(1),
         "\n  try : NCCL_DEBUG=INFO tells more; NCCL_SOCKET_IFNAME chooses the network");
  return from_hex(text);
}

// NCCL cannot use one GPU for two ranks; its own message for that is hard to understand.
void require_own_gpus(CudaDevice& device, Control& control, const std::string& name) {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) std::strcpy(host, "unknown");
  // Hosts of equal name exist, for example in containers.
  std::string boot_id = "-";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  char bus_id[32] = "";
  CUDA_CHECK(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device.ordinal()));
  const std::vector<std::string> gathered =
      control.gather(concat(host, ' ', boot_id, ' ', bus_id), 0, "GPUs of group " + name);
  std::string all;
  for (const std::string& line : gathered) all += line + '\n';
  std::istringstream lines(control.broadcast(all, 0, "GPUs of group " + name));
  std::map<std::string, int> rank_of;
  std::string line;
  for (int rank = 0; std::getline(lines, line); ++rank) {
    const auto [found, is_new] = rank_of.emplace(line, rank);
    if (is_new) continue;
    fail(ExitCode::Resource, "group ", name, ": ranks ", found->second, " and ", rank,
         " are on one GPU (", line.substr(line.rfind(' ') + 1), " of host ",
         line.substr(0, line.find(' ')),
         "), which NCCL does not support\n  try : as many ranks per host as it has GPUs, or the "
         "MPI backend, which lets ranks share a GPU");
  }
}

}  // namespace

bool nccl_available() { return true; }

std::string nccl_version() {
  int version = 0;
  const ncclResult_t result = ncclGetVersion(&version);
  if (result != ncclSuccess) fail_nccl(result, nullptr, "ncclGetVersion");
  return concat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

std::unique_ptr<Group> make_nccl_group(Device& device, Control& control, const std::string& name) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr)
    fail(ExitCode::Resource, "group ", name, ": NCCL needs a GPU, not ", device.name());
  cuda->make_current();
  require_own_gpus(*cuda, control, name);
  const ncclUniqueId id = agree_on_id(control, name);
  auto comm = std::make_unique<NcclCommunicator>(*cuda);
  comm->make(concat("start of group ", name, " on rank ", control.rank(), '/', control.size()),
             [id, rank = control.rank(), size = control.size()](ncclComm_t* made) {
               return ncclCommInitRank(made, size, id, rank);
             });
  return std::make_unique<NcclGroup>(std::move(comm), control.rank(), control.size(), name);
}

}  // namespace ferry
