#include <mpi.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>

#include "core/check.h"
#include "core/comm/launch.h"
#include "core/comm/mpi_call.h"
#include "core/comm/mpi_group.h"
#include "core/comm/nccl_group.h"
#include "core/comm/runtime.h"
#include "core/wait.h"

namespace ferry {
namespace {

// Containers often forbid to read another process's memory. Open MPI then prints an error for each
// large message between ranks of one host, unless it is told to copy through shared memory.
void avoid_forbidden_copies() {
  char source = 1, target = 0;
  const iovec from{&source, 1}, to{&target, 1};
  if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1) return;
  CHECK(setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0) == 0, "setenv failed");
}

// How the CUDA runtime must start in a job of several ranks; before its first call.
void let_gpus_wait_for_peers() {
  // Kernels are otherwise loaded at their first launch, which may wait for all work of the GPU: for
  // a collective whose peer waits for this rank to go on.
  CHECK(setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0, "setenv failed");
  // Streams that wait for a peer must not share a hardware queue with those that work; 8 unless
  // set.
  CHECK(setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0, "setenv failed");
}

// MPI writes to sockets whose other end may be gone. That is an error of its call, and not the end
// of this rank: then it would be reported as lost beside the one that was.
void let_writes_fail() {
  CHECK(std::signal(SIGPIPE, SIG_IGN) != SIG_ERR, "signal: ", std::strerror(errno));
}

class SoloRuntime final : public Runtime {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  std::string host_name() const override { return this_host(); }
  Control& control() override { return control_; }
  std::unique_ptr<Control> make_control(const std::string&) override {
    return std::make_unique<SoloControl>();
  }
  std::unique_ptr<Group> world_group() override { return make_solo_group(); }
  std::unique_ptr<Group> world_nccl_group(Device&) override { return make_solo_group(); }
  [[noreturn]] void abort(int exit_code) override {
    std::cout << std::flush;
    std::_Exit(exit_code);
  }

 private:
  SoloControl control_;
};

class MpiControl final : public Control {
 public:
  explicit MpiControl(MPI_Comm comm, std::string name = "")
      : comm_(MpiCommunicator::duplicate(comm)), name_(std::move(name)) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }

  void barrier(const std::string& what) override {
    complete_mpi([&](MPI_Request* request) { return MPI_Ibarrier(comm_.get(), request); },
                 text("barrier", what));
  }

  std::vector<std::string> gather(const std::string& own, int root,
                                  const std::string& what) override {
    const bool is_root = rank() == root;
    std::vector<int> lengths(static_cast<size_t>(is_root ? size() : 0)), offsets;
    const int length = narrow(own.size(), what);
    complete_mpi(
        [&](MPI_Request* request) {
          return MPI_Igather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, root, comm_.get(),
                             request);
        },
        text("gather of lengths", what));
    size_t total = 0;
    for (const int n : lengths) {
      offsets.push_back(narrow(total, what));
      total += static_cast<size_t>(n);
    }
    std::string all(total, '\0');
    complete_mpi(
        [&](MPI_Request* request) {
          return MPI_Igatherv(own.data(), length, MPI_CHAR, all.data(), lengths.data(),
                              offsets.data(), MPI_CHAR, root, comm_.get(), request);
        },
        text("gather", what));
    std::vector<std::string> texts;
    for (size_t i = 0; i < lengths.size(); ++i)
      texts.push_back(all.substr(static_cast<size_t>(offsets[i]), static_cast<size_t>(lengths[i])));
    return texts;
  }

  std::string broadcast(const std::string& own, int root, const std::string& what) override {
    std::string result = rank() == root ? own : std::string();
    int length = narrow(result.size(), what);
    complete_mpi(
        [&](MPI_Request* request) {
          return MPI_Ibcast(&length, 1, MPI_INT, root, comm_.get(), request);
        },
        text("broadcast of a length", what));
    result.resize(static_cast<size_t>(length));
    complete_mpi(
        [&](MPI_Request* request) {
          return MPI_Ibcast(result.data(), length, MPI_CHAR, root, comm_.get(), request);
        },
        text("broadcast", what));
    return result;
  }

 private:
  static int narrow(size_t length, const std::string& what) {
    CHECK(length <= size_t{1} << 30, what, ": ", length, " bytes of text");
    return static_cast<int>(length);
  }
  std::string text(const char* op, const std::string& what) const {
    return concat(op, " '", what, "' on rank ", rank(), '/', size(),
                  name_.empty() ? "" : " of control plane ", name_);
  }
  MpiCommunicator comm_;
  std::string name_;
};

class MpiRuntime final : public Runtime {
 public:
  explicit MpiRuntime(int num_ranks) {
    avoid_forbidden_copies();
    let_gpus_wait_for_peers();
    let_writes_fail();
    int provided = MPI_THREAD_SINGLE;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_MULTIPLE)
      fail(ExitCode::Resource,
           "this MPI has no MPI_THREAD_MULTIPLE, which ferry needs: use an Open MPI built with it");
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
              "MPI_Comm_set_errhandler");
    control_ = std::make_unique<MpiControl>(MPI_COMM_WORLD);
    if (num_ranks > 0 && control_->size() != num_ranks)
      fail(ExitCode::Usage, "error: the launcher started ", num_ranks, " ranks, but MPI sees ",
           control_->size(),
           "\n  why : the launcher belongs to another MPI than ferry is built with\n  try : the "
           "mpirun of that Open MPI, or srun --mpi=pmix");
    MPI_Comm local = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, control_->rank(),
                                  MPI_INFO_NULL, &local),
              "MPI_Comm_split_type");
    const MpiCommunicator host(local);
    local_rank_ = host.rank();
    local_size_ = host.size();
  }

  ~MpiRuntime() override {
    // After an error this rank is about to abort; finalising would wait for the others.
    if (std::uncaught_exceptions() > 0) return;
    try {
      // Finalising has no deadline, so all ranks meet before it.
      control_->barrier("end of the job");
      control_.reset();
      check_mpi(MPI_Finalize(), "MPI_Finalize");
    } catch (const Error& error) {
      std::cerr << error.what() << std::endl;
      abort(static_cast<int>(error.code()));
    }
  }

  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  std::string host_name() const override { return this_host(); }
  Control& control() override { return *control_; }
  std::unique_ptr<Control> make_control(const std::string& name) override {
    return std::make_unique<MpiControl>(MPI_COMM_WORLD, name);
  }
  std::unique_ptr<Group> world_group() override { return make_mpi_group(MPI_COMM_WORLD, "world"); }
  std::unique_ptr<Group> world_nccl_group(Device& device) override {
    return make_nccl_group(device, *control_, "world");
  }
  [[noreturn]] void abort(int exit_code) override {
    std::cout << std::flush;
    std::cerr << std::flush;
    static_cast<void>(MPI_Abort(MPI_COMM_WORLD, exit_code));
    std::_Exit(exit_code);
  }

 private:
  std::unique_ptr<MpiControl> control_;
  int local_rank_ = 0;
  int local_size_ = 1;
};

}  // namespace

Launch this_launch() {
  return read_launch([](const char* name) { return std::getenv(name); });
}

std::string this_host() {
  char name[256] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

std::unique_ptr<Runtime> Runtime::start() {
  set_wait_limit(hang_limit_seconds());
  const Launch launch = this_launch();
  if (launch.by_launcher) return std::make_unique<MpiRuntime>(launch.num_ranks);
  return std::make_unique<SoloRuntime>();
}

double comm_timeout_seconds() {
  static const double seconds = read_comm_timeout(std::getenv("FERRY_COMM_TIMEOUT_S"));
  return seconds;
}

double hang_limit_seconds() { return 10 * comm_timeout_seconds(); }

void fail_deadline(const std::string& what, double waited, double limit) {
  fail(ExitCode::Lost, "communication hangs: ", what, " waited ", waited, " s, the limit is ",
       limit,
       " s (FERRY_COMM_TIMEOUT_S)\n  why : a rank is gone or stuck\n  try : restart the job");
}

}  // namespace ferry
