#include "app/data/indexed_dataset.h"

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

namespace ferry {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr uint64_t kVersion = 1;
constexpr int64_t kHeaderBytes = 34;

template <class T>
T load(std::span<const std::byte> bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <class T>
std::vector<T> load_array(std::span<const std::byte> bytes, int64_t offset, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  if (count > 0) std::memcpy(values.data(), bytes.data() + offset, values.size() * sizeof(T));
  return values;
}

bool is_token_type(uint8_t code) { return (code >= 1 && code <= 5) || code == 8; }

struct Index {
  TokenType type;
  std::vector<int32_t> lengths;
  std::vector<int64_t> documents;
  int64_t bin_bytes;
};

// Verifies the lengths against the byte offsets and returns the number of bytes they span.
int64_t verify_sequences(const std::string& name, std::span<const int32_t> lengths,
                         std::span<const int64_t> offsets, TokenType type) {
  int64_t expected = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0) {
      fail(ExitCode::Data, name, ": sequence ", i, " has the negative length ", lengths[i]);
    }
    if (offsets[i] != expected) {
      fail(ExitCode::Data, name, ": sequence ", i, " starts at byte ", offsets[i],
           " of the .bin file, but the lengths before it end at byte ", expected);
    }
    if (__builtin_add_overflow(expected, lengths[i] * size_of(type), &expected)) {
      fail(ExitCode::Data, name, ": the lengths up to sequence ", i, " overflow 64-bit sizes");
    }
  }
  return expected;
}

void verify_documents(const std::string& name, std::span<const int64_t> documents,
                      int64_t num_sequences) {
  if (documents.front() != 0) {
    fail(ExitCode::Data, name, ": the first document index is ", documents.front(), ", not 0");
  }
  for (size_t i = 1; i < documents.size(); ++i) {
    if (documents[i] < documents[i - 1]) {
      fail(ExitCode::Data, name, ": document index ", i, " decreases from ", documents[i - 1],
           " to ", documents[i]);
    }
  }
  if (documents.back() != num_sequences) {
    fail(ExitCode::Data, name, ": the last document index is ", documents.back(), ", not the ",
         num_sequences, " sequences of the file");
  }
}

Index read_index(const MappedFile& file) {
  const std::string name = file.path().string();
  const auto bytes = file.bytes();
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < kHeaderBytes) {
    fail(ExitCode::Data, name, ": ", size, " bytes are too few for the header of ", kHeaderBytes,
         "; the file is truncated");
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    fail(ExitCode::Data, name, ": does not start with MMIDIDX; not a Megatron .idx file");
  }
  if (const auto version = load<uint64_t>(bytes, 9); version != kVersion) {
    fail(ExitCode::Data, name, ": format version ", version, " is not supported (only ", kVersion,
         ")");
  }
  const auto code = load<uint8_t>(bytes, 17);
  if (!is_token_type(code)) {
    fail(ExitCode::Data, name, ": dtype code ", static_cast<int>(code),
         " is not an integer type (1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16)");
  }
  const auto sequences = load<uint64_t>(bytes, 18);
  const auto bounds = load<uint64_t>(bytes, 26);
  // Compared without a product of file contents, which could overflow.
  const auto body = static_cast<uint64_t>(size - kHeaderBytes);
  if (sequences > body / 12 || bounds > (body - 12 * sequences) / 8) {
    fail(ExitCode::Data, name, ": the header promises ", sequences, " sequences and ", bounds,
         " document indices, which need more than the ", size,
         " bytes of the file; it is truncated");
  }
  if (bounds == 0) fail(ExitCode::Data, name, ": has no document index; at least [0] is needed");
  if (sequences > std::numeric_limits<int32_t>::max()) {
    fail(ExitCode::Data, name, ": ", sequences,
         " sequences are more than 2^31 - 1; split the file");
  }
  const auto num_sequences = static_cast<int64_t>(sequences);
  Index index{static_cast<TokenType>(code), {}, {}, 0};
  index.lengths = load_array<int32_t>(bytes, kHeaderBytes, num_sequences);
  const auto offsets = load_array<int64_t>(bytes, kHeaderBytes + 4 * num_sequences, num_sequences);
  index.documents =
      load_array<int64_t>(bytes, kHeaderBytes + 12 * num_sequences, static_cast<int64_t>(bounds));
  // One byte per sequence may follow: the modes of multimodal files, which are all text here.
  const int64_t rest = size - kHeaderBytes - 12 * num_sequences - 8 * static_cast<int64_t>(bounds);
  if (rest != 0 && rest != num_sequences) {
    fail(ExitCode::Data, name, ": ", rest, " bytes follow the last array; the file is damaged");
  }
  index.bin_bytes = verify_sequences(name, index.lengths, offsets, index.type);
  verify_documents(name, index.documents, num_sequences);
  return index;
}

}  // namespace

std::string dataset_prefix(const std::string& path) {
  const std::string_view view(path);
  return path.substr(0, path.size() - (view.ends_with(".bin") || view.ends_with(".idx") ? 4 : 0));
}

TokenFile open_indexed_dataset(const std::string& path) {
  const std::string prefix = dataset_prefix(path);
  for (const char* suffix : {".idx", ".bin"}) {
    if (!std::filesystem::exists(prefix + suffix)) {
      fail(ExitCode::Data, "there is no file ", prefix, suffix, "; `ferry data build TEXT... -o ",
           prefix, "` makes ", prefix, ".bin and .idx");
    }
  }
  Index index = read_index(MappedFile(prefix + ".idx"));
  MappedFile bin(prefix + ".bin");
  const auto size = static_cast<int64_t>(bin.bytes().size());
  if (size != index.bin_bytes) {
    fail(ExitCode::Data, prefix, ".bin has ", size, " bytes, but ", prefix, ".idx describes ",
         index.bin_bytes, "; the file is ", size < index.bin_bytes ? "truncated" : "too long",
         " or belongs to another .idx");
  }
  return TokenFile(std::move(bin), 0, index.type, std::move(index.lengths),
                   std::move(index.documents));
}

namespace {

std::string refuse_existing(const std::string& prefix, bool overwrite) {
  for (const char* suffix : {".bin", ".idx"}) {
    if (!overwrite && std::filesystem::exists(prefix + suffix)) {
      fail(ExitCode::Usage, prefix, suffix,
           " exists already; choose another -o PREFIX or add "
           "--overwrite");
    }
  }
  return prefix;
}

}  // namespace

IndexedWriter::IndexedWriter(const std::string& prefix, TokenType type, bool overwrite)
    : prefix_(refuse_existing(dataset_prefix(prefix), overwrite)),
      type_(type),
      bin_(prefix_ + ".bin"),
      idx_(prefix_ + ".idx") {
  CHECK(type != TokenType::U32, "the format has no code for u32");
}

void IndexedWriter::add_sequence(std::span<const int32_t> ids) {
  if (ids.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    fail(ExitCode::Data, prefix_, ".bin: document ", num_documents(), " has ", ids.size(),
         " tokens, more than 2^31 - 1; cut it into several");
  }
  dispatch_token_type(type_, [&]<class T>() {
    std::vector<T> values(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!std::in_range<T>(ids[i])) {
        fail(ExitCode::Data, prefix_, ".bin: document ", num_documents(), ", token ", i, ": id ",
             ids[i], " does not fit the file's type ", name_of(type_));
      }
      values[i] = static_cast<T>(ids[i]);
    }
    bin_.write_values(std::span<const T>(values));
  });
  lengths_.push_back(static_cast<int32_t>(ids.size()));
  num_tokens_ += static_cast<int64_t>(ids.size());
}

void IndexedWriter::end_document() { documents_.push_back(static_cast<int64_t>(lengths_.size())); }

void IndexedWriter::finish() {
  CHECK(documents_.back() == static_cast<int64_t>(lengths_.size()), "end_document() is missing");
  bin_.finish();

  std::vector<int64_t> offsets;
  offsets.reserve(lengths_.size());
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    offsets.push_back(offset);
    offset += length * size_of(type_);
  }
  idx_.write_values(std::span<const char>(kMagic));
  idx_.write_values(std::span<const uint64_t>(std::array{kVersion}));
  idx_.write_values(std::span<const TokenType>(std::array{type_}));
  idx_.write_values(
      std::span<const uint64_t>(std::array<uint64_t, 2>{lengths_.size(), documents_.size()}));
  idx_.write_values(std::span<const int32_t>(lengths_));
  idx_.write_values(std::span<const int64_t>(offsets));
  idx_.write_values(std::span<const int64_t>(documents_));
  idx_.finish();

  // An old .idx must never stand beside a new .bin.
  std::filesystem::remove(prefix_ + ".idx");
  bin_.publish();
  idx_.publish();
}

}  // namespace ferry
