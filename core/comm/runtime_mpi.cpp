#include <mpi.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "core/check.h"
#include "core/comm/mpi_call.h"
#include "core/comm/mpi_group.h"
#include "core/comm/nccl_group.h"
#include "core/comm/runtime.h"

namespace ferry {
namespace {

std::string this_host() {
  char name[256] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

// mpirun and srun (with a PMI) say so in the environment. A plain start inside an allocation of
// the scheduler has the scheduler's variables but none of these.
bool launched_as_job() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

class SoloRuntime final : public Runtime {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  std::string host_name() const override { return this_host(); }
  Control& control() override { return control_; }
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
  explicit MpiControl(MPI_Comm comm) : comm_(MpiCommunicator::duplicate(comm)) {}
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
    return concat(op, " '", what, "' on rank ", rank(), '/', size());
  }
  MpiCommunicator comm_;
};

class MpiRuntime final : public Runtime {
 public:
  MpiRuntime() {
    int provided = MPI_THREAD_SINGLE;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_MULTIPLE)
      fail(ExitCode::Resource,
           "this MPI has no MPI_THREAD_MULTIPLE, which ferry needs: use an Open MPI built with it");
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
              "MPI_Comm_set_errhandler");
    control_ = std::make_unique<MpiControl>(MPI_COMM_WORLD);
    MPI_Comm local = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, control_->rank(),
                                  MPI_INFO_NULL, &local),
              "MPI_Comm_split_type");
    const MpiCommunicator host(local);
    local_rank_ = host.rank();
    local_size_ = host.size();
  }

  ~MpiRuntime() override {
    control_.reset();
    // After an error this rank is about to abort; finalising would wait for the others.
    if (std::uncaught_exceptions() == 0) MPI_Finalize();
  }

  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  std::string host_name() const override { return this_host(); }
  Control& control() override { return *control_; }
  std::unique_ptr<Group> world_group() override { return make_mpi_group(MPI_COMM_WORLD, "world"); }
  std::unique_ptr<Group> world_nccl_group(Device& device) override {
    return make_nccl_group(device, *control_, "world");
  }
  [[noreturn]] void abort(int exit_code) override {
    std::cout << std::flush;
    std::cerr << std::flush;
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

 private:
  std::unique_ptr<MpiControl> control_;
  int local_rank_ = 0;
  int local_size_ = 1;
};

}  // namespace

std::unique_ptr<Runtime> Runtime::start() {
  if (launched_as_job()) return std::make_unique<MpiRuntime>();
  return std::make_unique<SoloRuntime>();
}

double comm_timeout_seconds() {
  static const double seconds = [] {
    const char* text = std::getenv("FERRY_COMM_TIMEOUT_S");
    if (text == nullptr) return 600.0;
    const double value = std::atof(text);
    if (value <= 0)
      fail(ExitCode::Usage, "FERRY_COMM_TIMEOUT_S = ", text, ": a number of seconds > 0 is needed");
    return value;
  }();
  return seconds;
}

}  // namespace ferry
