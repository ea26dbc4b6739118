#include "app/data/dataset_tools.h"

#include "app/data/indexed_dataset.h"
#include "app/data/text_reader.h"
#include "core/check.h"

#include <algorithm>
#include <filesystem>

namespace ferry {
namespace {

void make_folder_of(const std::string& prefix) {
  const auto folder = std::filesystem::path(prefix).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    fail(ExitCode::Storage, "cannot make the folder ", folder.string(), ": ", error.message());
  }
}

TokenType common_type(const std::vector<TokenFile>& files) {
  const auto same = [&](const TokenFile& file) { return file.type() == files.front().type(); };
  if (std::all_of(files.begin(), files.end(), same)) return files.front().type();
  const auto wide = [](const TokenFile& file) { return file.type() == TokenType::I64; };
  return std::any_of(files.begin(), files.end(), wide) ? TokenType::I64 : TokenType::I32;
}

}  // namespace

BuildResult build_dataset(const BuildOptions& options, Tokenizer& tokenizer) {
  if (options.append_eod && tokenizer.eod() < 0) {
    fail(ExitCode::Usage, "--append-eod: the tokenizer ", tokenizer.name(),
         " has no end-of-document token");
  }
  TextReader reader(options.inputs, options.json_key);
  make_folder_of(options.output);
  IndexedWriter writer(options.output, token_type_for(tokenizer.vocab_size()), options.overwrite);
  BuildResult result;
  std::string text;
  std::vector<int32_t> ids;
  while (reader.next(text)) {
    ids.clear();
    tokenizer.encode(text, ids);
    if (!ids.empty() && options.append_eod) ids.push_back(tokenizer.eod());
    if (!ids.empty()) writer.add_sequence(ids);
    writer.end_document();
    result.text_bytes += static_cast<int64_t>(text.size());
  }
  writer.finish();
  result.documents = writer.num_documents();
  result.tokens = writer.num_tokens();
  return result;
}

DatasetInfo dataset_info(const TokenFile& file) {
  DatasetInfo info;
  info.file = file.name();
  info.dtype = name_of(file.type());
  info.documents = file.num_documents();
  info.sequences = file.num_sequences();
  info.tokens = file.num_tokens();
  info.bytes = file.num_tokens() * size_of(file.type());
  info.largest_id = file.scan(kAnyVocab, file.num_tokens());
  if (const auto lengths = file.lengths(); !lengths.empty()) {
    const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
    info.min_length = *shortest;
    info.max_length = *longest;
    info.mean_length = static_cast<double>(info.tokens) / static_cast<double>(info.sequences);
  }
  info.entropy = token_entropy(file);
  return info;
}

BuildResult merge_datasets(const std::vector<std::string>& inputs, const std::string& output,
                           bool overwrite) {
  CHECK(!inputs.empty());
  std::vector<TokenFile> files;
  for (const std::string& input : inputs) files.push_back(open_indexed_dataset(input));
  make_folder_of(output);
  IndexedWriter writer(output, common_type(files), overwrite);
  std::vector<int32_t> ids;
  for (const TokenFile& file : files) {
    for (int64_t document = 0; document < file.num_documents(); ++document) {
      const int64_t end = file.documents()[document + 1];
      for (int64_t sequence = file.documents()[document]; sequence < end; ++sequence) {
        ids.resize(static_cast<size_t>(file.lengths()[sequence]));
        file.read(sequence, 0, kAnyVocab, ids);
        writer.add_sequence(ids);
      }
      writer.end_document();
    }
  }
  writer.finish();
  return {.documents = writer.num_documents(), .tokens = writer.num_tokens(), .text_bytes = 0};
}

}  // namespace ferry
