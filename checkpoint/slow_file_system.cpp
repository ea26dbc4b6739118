#include "checkpoint/slow_file_system.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

class SlowFile final : public File {
 public:
  SlowFile(SlowFileSystem& disk, std::unique_ptr<File> real)
      : disk_(disk), real_(std::move(real)) {}
  void write_at(const void* data, size_t bytes, int64_t position) override {
    disk_.take_time_for(bytes);
    real_->write_at(data, bytes, position);
  }
  void write_direct(const void* data, size_t bytes, int64_t position) override {
    disk_.take_time_for(bytes);
    real_->write_direct(data, bytes, position);
  }
  void read_at(void* data, size_t bytes, int64_t position) const override {
    real_->read_at(data, bytes, position);
  }
  int64_t size() const override { return real_->size(); }
  void sync() override { real_->sync(); }
  void drop_cache() override { real_->drop_cache(); }
  void close() override { real_->close(); }

 private:
  SlowFileSystem& disk_;
  std::unique_ptr<File> real_;
};

}  // namespace

std::unique_ptr<File> SlowFileSystem::create(const Path& path) {
  return std::make_unique<SlowFile>(*this, real_.create(path));
}

void SlowFileSystem::take_time_for(size_t bytes) {
  Clock::time_point done;
  {
    const std::lock_guard lock(mutex_);
    const std::chrono::duration<double> time(static_cast<double>(bytes) / bytes_per_second_);
    free_at_ = std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(time);
    done = free_at_;
  }
  std::this_thread::sleep_until(done);
}

}  // namespace ferry
