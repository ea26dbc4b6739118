#include "app/data/other_token_files.h"

#include "app/data/indexed_dataset.h"

#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace ferry {
namespace {

constexpr int64_t kLlmcHeaderBytes = 1024;

enum class EodPlace { First, Last };

// Documents are told apart by the id `eod`, which is the first or the last token of each.
TokenFile cut_documents(MappedFile file, int64_t first_byte, TokenType type, int64_t eod,
                        EodPlace place) {
  const auto bytes = file.bytes().subspan(static_cast<size_t>(first_byte));
  const int64_t num_tokens = static_cast<int64_t>(bytes.size()) / size_of(type);
  std::vector<int64_t> bounds{0};
  if (eod >= 0) {
    dispatch_token_type(type, [&]<class T>() {
      for (int64_t i = 0; i < num_tokens; ++i) {
        T value;
        std::memcpy(&value, bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
        if (!std::cmp_equal(value, eod)) continue;
        const int64_t bound = place == EodPlace::First ? i : i + 1;
        if (bound != bounds.back()) bounds.push_back(bound);
      }
    });
  }
  if (bounds.back() != num_tokens) bounds.push_back(num_tokens);

  std::vector<int32_t> lengths;
  std::vector<int64_t> documents{0};
  for (size_t i = 1; i < bounds.size(); ++i) {
    const int64_t length = bounds[i] - bounds[i - 1];
    if (length > std::numeric_limits<int32_t>::max()) {
      fail(ExitCode::Data, file.path().string(), ": document ", i - 1, " has ", length,
           " tokens, more than 2^31 - 1; is the end-of-document id ", eod, " right?");
    }
    lengths.push_back(static_cast<int32_t>(length));
    documents.push_back(static_cast<int64_t>(i));
  }
  return TokenFile(std::move(file), first_byte, type, std::move(lengths), std::move(documents));
}

}  // namespace

TokenFile open_llmc_shard(const std::string& path, int64_t eod) {
  MappedFile file(path);
  const auto size = static_cast<int64_t>(file.bytes().size());
  if (size < kLlmcHeaderBytes) {
    fail(ExitCode::Data, path, ": ", size, " bytes are too few for the llm.c header of ",
         kLlmcHeaderBytes);
  }
  int32_t header[3];
  std::memcpy(header, file.bytes().data(), sizeof(header));
  const auto [magic, version, count] = header;
  TokenType type;
  if (magic == 20240520 && version == 1) {
    type = TokenType::U16;
  } else if (magic == 20240801 && version == 7) {
    type = TokenType::U32;
  } else {
    fail(ExitCode::Data, path, ": magic ", magic, " version ", version,
         " is not an llm.c token shard (20240520 version 1, or 20240801 version 7)");
  }
  if (count < 0 || size != kLlmcHeaderBytes + count * size_of(type)) {
    fail(ExitCode::Data, path, ": the header promises ", count, " tokens of ", size_of(type),
         " bytes, but ", size - kLlmcHeaderBytes, " bytes follow it; the file is damaged");
  }
  return cut_documents(std::move(file), kLlmcHeaderBytes, type, eod, EodPlace::First);
}

TokenFile open_raw_tokens(const std::string& path, int64_t vocab, int64_t eod) {
  MappedFile file(path);
  const TokenType type = vocab <= 65536 ? TokenType::U16 : TokenType::U32;
  const auto size = static_cast<int64_t>(file.bytes().size());
  if (size % size_of(type) != 0) {
    fail(ExitCode::Data, path, ": ", size, " bytes are not a whole number of ", name_of(type),
         " tokens, the type for a vocabulary of ", vocab);
  }
  constexpr char kNpyMagic[] = "\x93NUMPY";
  if (size >= 6 && std::memcmp(file.bytes().data(), kNpyMagic, 6) == 0) {
    fail(ExitCode::Data, path,
         ": is a .npy file with a header, not raw tokens; save it with "
         "numpy's tofile()");
  }
  return cut_documents(std::move(file), 0, type, eod, EodPlace::Last);
}

TokenFile open_token_file(const std::string& kind, const std::string& path, int64_t vocab,
                          int64_t eod) {
  if (kind == "megatron") return open_indexed_dataset(path);
  if (kind == "llmc") return open_llmc_shard(path, eod);
  if (kind == "raw") return open_raw_tokens(path, vocab, eod);
  fail(ExitCode::Usage, "data.kind = \"", kind, "\" has no token files; use megatron, llmc or raw");
}

}  // namespace ferry
