#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "core/device.h"
#include "core/stream_cpu.h"

namespace ferry {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and an AVX-512 vector

class CpuStorage final : public Storage {
 public:
  CpuStorage(void* data, int64_t bytes, std::string_view name, MemoryLedger& ledger)
      : Storage(data, bytes, true), name_(name), ledger_(ledger) {
    ledger_.add(name_, bytes);
  }
  ~CpuStorage() override {
    ledger_.remove(name_, bytes());
    std::free(data());
  }

 private:
  std::string name_;
  MemoryLedger& ledger_;
};

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::Cpu; }
  std::string name() const override { return "cpu"; }
  std::unique_ptr<Stream> make_stream(std::string name) override {
    return std::make_unique<CpuStream>(*this, std::move(name));
  }
  std::shared_ptr<Storage> allocate(Stream&, std::string_view name, int64_t bytes) override {
    return allocate_host(name, bytes);
  }
  std::shared_ptr<Storage> allocate_host(std::string_view name, int64_t bytes) override {
    const size_t rounded = (static_cast<size_t>(bytes) + kAlignment) / kAlignment * kAlignment;
    void* data = std::aligned_alloc(kAlignment, rounded);
    if (data == nullptr)
      fail(ExitCode::Resource, "not enough host memory: '", name, "' needs ", bytes, " bytes, ",
           free_bytes(), " are free and ", memory().current(), " are held by this rank");
    if (poison_memory()) std::memset(data, 0xff, rounded);
    return std::make_shared<CpuStorage>(data, bytes, name, memory());
  }
  int64_t total_bytes() const override {
    return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  }
  int64_t free_bytes() const override {
    return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace ferry
