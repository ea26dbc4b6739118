#pragma once

// What `ferry data` does, apart from the command line: build, describe and merge token files.

#include "app/data/entropy.h"
#include "app/data/token_file.h"
#include "app/data/tokenizer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace ferry {

struct BuildOptions {
  std::vector<std::string> inputs;  // .jsonl, .json, .txt
  std::string output;               // PREFIX; missing folders are made
  std::string json_key = "text";
  bool append_eod = false;  // the tokenizer's end-of-document id after each document with tokens
  bool overwrite = false;
};

struct BuildResult {
  int64_t documents = 0, tokens = 0, text_bytes = 0;
};

/// Tokenizes documents into PREFIX.bin and .idx. A document without tokens stays a document without
/// a sequence. Errors name the text file and line; nothing is left behind then.
BuildResult build_dataset(const BuildOptions& options, Tokenizer& tokenizer);

struct DatasetInfo {
  std::string file, dtype;
  int64_t documents = 0, sequences = 0, tokens = 0, bytes = 0;
  int64_t largest_id = -1;                 // -1: no tokens
  int64_t min_length = 0, max_length = 0;  // tokens per sequence
  double mean_length = 0;
  Entropy entropy;  // nats
};

/// Reads the whole file.
DatasetInfo dataset_info(const TokenFile& file);

/// The documents of `inputs`, one file after the other, as a new file. Token types may differ: the
/// result is i32 then, or i64 if one of them is.
BuildResult merge_datasets(const std::vector<std::string>& inputs, const std::string& output,
                           bool overwrite);

}  // namespace ferry
