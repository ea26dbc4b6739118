#include "core/mark.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <mutex>
#include <sstream>

#include "core/check.h"

namespace ferry {
namespace {

constexpr size_t kTextBytes = 128;
constexpr size_t kLineBytes = 256;
constexpr size_t kMaxNamed = 8;

// One text is shown while the other is written.
struct Page {
  std::atomic<int> shown{0};
  std::atomic<int64_t> num_marks{0};
  char texts[2][kTextBytes] = {"start", ""};
};

Page& page() {
  static Page* const shared = [] {
    void* memory =
        mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap of ", sizeof(Page), " bytes: ", std::strerror(errno));
    return new (memory) Page;
  }();
  return *shared;
}

struct File {
  int descriptor = -1;
  std::filesystem::path directory;
  int num_ranks = 0;
  std::string host;
};

std::mutex mutex;
File file;
RankMark own;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::filesystem::path path_of(const std::filesystem::path& directory, int rank) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "rank-%04d.mark", rank);
  return directory / name.data();
}

// A line of a fixed size, so that a reader sees an old one or a new one.
void write_own() {
  if (file.descriptor < 0) return;
  std::array<char, kLineBytes + 1> line{};
  const int length = std::snprintf(line.data(), kLineBytes,
                                   "step %lld since %.3f waits %d host %.64s operation %.64s",
                                   static_cast<long long>(own.step), own.since, own.num_waits,
                                   file.host.c_str(), own.operation.c_str());
  std::fill(line.begin() + std::max(length, 0), line.begin() + kLineBytes - 1, ' ');
  line[kLineBytes - 1] = '\n';
  static_cast<void>(pwrite(file.descriptor, line.data(), kLineBytes, 0) < 0);
}

std::string place_text(const RankMark& mark) {
  return mark.step > 0 ? concat("step ", mark.step, ", ", mark.operation) : mark.operation;
}

}  // namespace

void mark(int64_t step, std::string_view operation) {
  std::lock_guard lock(mutex);
  own.step = step;
  own.operation = operation;
  own.since = seconds_since_1970();
  const int hidden = 1 - page().shown.load();
  std::snprintf(page().texts[hidden], kTextBytes, "%s", place_text(own).c_str());
  page().shown = hidden;
  ++page().num_marks;
  write_own();
}

std::string mark_text() {
  std::lock_guard lock(mutex);
  return mark_text_in_memory();
}

const char* mark_text_in_memory() noexcept { return page().texts[page().shown.load()]; }

WaitingMark::WaitingMark() {
  std::lock_guard lock(mutex);
  ++own.num_waits;
  write_own();
}

WaitingMark::~WaitingMark() {
  // A wait that was given up is still what keeps this rank.
  if (std::uncaught_exceptions() > 0) return;
  std::lock_guard lock(mutex);
  --own.num_waits;
  write_own();
}

int64_t num_marks() noexcept { return page().num_marks; }

void share_mark() { static_cast<void>(page()); }

void write_marks_to(const std::filesystem::path& directory, int rank, int num_ranks,
                    const std::string& host) {
  const std::filesystem::path path = path_of(directory, rank);
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0)
    fail(ExitCode::Storage, "error: cannot write ", path.string(), ": ", std::strerror(errno),
         "\n  why : each rank says there what it is doing\n  try : a run.dir that every rank may "
         "write to");
  std::lock_guard lock(mutex);
  if (file.descriptor >= 0) close(file.descriptor);
  file = {descriptor, directory, num_ranks, host};
  own.rank = rank;
  if (own.operation.empty()) own.operation = "start";
  if (own.since == 0) own.since = seconds_since_1970();
  write_own();
}

std::vector<RankMark> read_marks(const std::filesystem::path& directory, int num_ranks) {
  std::vector<RankMark> marks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::ifstream in(path_of(directory, rank));
    RankMark found{.rank = rank};
    std::string step, since, waits, host, operation;
    in >> step >> found.step >> since >> found.since >> waits >> found.num_waits >> host >>
        found.host >> operation;
    std::getline(in >> std::ws, found.operation);
    if (!in || step != "step" || since != "since" || waits != "waits" || host != "host" ||
        operation != "operation")
      continue;
    found.operation.erase(found.operation.find_last_not_of(' ') + 1);
    marks.push_back(std::move(found));
  }
  return marks;
}

std::string ranks_behind() {
  std::filesystem::path directory;
  int num_ranks = 0;
  {
    std::lock_guard lock(mutex);
    directory = file.directory;
    num_ranks = file.num_ranks;
  }
  if (num_ranks < 2) return "";
  const std::vector<RankMark> marks = read_marks(directory, num_ranks);
  if (marks.empty()) return "";
  std::vector<RankMark> behind;
  const auto pick = [&](auto condition) {
    std::copy_if(marks.begin(), marks.end(), std::back_inserter(behind), condition);
  };
  pick([](const RankMark& mark) { return mark.num_waits == 0; });
  if (behind.empty()) {
    const RankMark last =
        *std::min_element(marks.begin(), marks.end(), [](const RankMark& a, const RankMark& b) {
          return a.step != b.step ? a.step < b.step : a.since < b.since;
        });
    pick([&](const RankMark& mark) {
      return mark.step == last.step && mark.operation == last.operation;
    });
  }
  if (behind.size() == marks.size()) return concat("all ranks are in ", place_text(marks.front()));
  std::string text;
  for (size_t i = 0; i < std::min(behind.size(), kMaxNamed); ++i) {
    std::ostringstream seconds;
    seconds.precision(1);
    seconds << std::fixed << seconds_since_1970() - behind[i].since;
    text += concat(text.empty() ? "" : ", ", "rank ", behind[i].rank, " on ", behind[i].host, " (",
                   place_text(behind[i]), ", for ", seconds.str(), " s)");
  }
  if (behind.size() > kMaxNamed) text += concat(" and ", behind.size() - kMaxNamed, " more");
  return text;
}

}  // namespace ferry
