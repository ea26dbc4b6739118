#include "app/data_command.h"

#include "app/data/dataset_tools.h"
#include "app/data/indexed_dataset.h"
#include "app/data/other_token_files.h"
#include "app/data/token_dataset.h"
#include "app/data/tokenizer.h"
#include "core/check.h"

#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

namespace ferry {
namespace {

// Options of all subcommands; each uses a few. The callbacks share it, and so it lives as long as
// the CLI::App.
struct DataOptions {
  BuildOptions build;
  std::string build_tokenizer = "byte";
  bool check_vocab = false;

  std::string path, kind = "megatron";
  int64_t vocab = 0, eod = -1;  // vocab 0: any
  bool json = false;

  std::optional<int64_t> document, sample;
  std::string text_tokenizer;  // empty: ids only
  DataSpec spec;
};
using Options = std::shared_ptr<DataOptions>;

// Without --vocab every id is legal. Raw files, whose type follows from the vocabulary, are uint16
// then.
int64_t vocab_or_any(const DataOptions& options) {
  if (options.vocab > 0) return options.vocab;
  return options.kind == "raw" ? int64_t{1} << 16 : kAnyVocab;
}

TokenFile open_file(const DataOptions& options) {
  return open_token_file(options.kind, options.path, vocab_or_any(options), options.eod);
}

void run_build(const DataOptions& options) {
  const auto tokenizer = open_tokenizer(options.build_tokenizer);
  const BuildResult result = build_dataset(options.build, *tokenizer);
  const std::string prefix = dataset_prefix(options.build.output);
  if (options.check_vocab) {
    open_indexed_dataset(prefix).scan(tokenizer->vocab_size(), result.tokens);
  }
  fmt::print(
      "{}.bin, .idx: {} documents, {} tokens of the {} tokenizer ({} ids), {} bytes of text\n",
      prefix, result.documents, result.tokens, tokenizer->name(), tokenizer->vocab_size(),
      result.text_bytes);
}

void run_info(const DataOptions& options) {
  const DatasetInfo info = dataset_info(open_file(options));
  if (options.json) {
    const nlohmann::ordered_json json{{"file", info.file},
                                      {"documents", info.documents},
                                      {"sequences", info.sequences},
                                      {"tokens", info.tokens},
                                      {"dtype", info.dtype},
                                      {"bytes", info.bytes},
                                      {"largest_id", info.largest_id},
                                      {"length_min", info.min_length},
                                      {"length_mean", info.mean_length},
                                      {"length_max", info.max_length},
                                      {"unigram_entropy_nats", info.entropy.unigram},
                                      {"bigram_entropy_nats", info.entropy.bigram}};
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print(
      "file             {}\n"
      "documents        {}\n"
      "sequences        {}\n"
      "tokens           {}\n"
      "dtype            {}\n"
      "bytes            {}\n"
      "largest id       {}\n"
      "sequence length  {} min, {:.1f} mean, {} max\n"
      "unigram entropy  {:.4f} nats per token\n"
      "bigram entropy   {:.4f} nats per token, given the one before\n",
      info.file, info.documents, info.sequences, info.tokens, info.dtype, info.bytes,
      info.largest_id, info.min_length, info.mean_length, info.max_length, info.entropy.unigram,
      info.entropy.bigram);
}

void run_check(const DataOptions& options) {
  const TokenFile file = open_file(options);
  const int64_t largest = file.scan(vocab_or_any(options), file.num_tokens());
  fmt::print("{}: ok, {} documents, {} tokens, largest id {}\n", file.name(), file.num_documents(),
             file.num_tokens(), largest);
}

void print_tokens(const std::string& title, const std::vector<int32_t>& ids,
                  const std::string& tokenizer) {
  fmt::print("{}, {} tokens\n{}\n", title, ids.size(), fmt::join(ids, " "));
  if (!tokenizer.empty()) fmt::print("{}\n", open_tokenizer(tokenizer)->decode(ids));
}

void dump_document(const DataOptions& options) {
  const TokenFile file = open_file(options);
  const int64_t document = options.document.value_or(0);
  if (document < 0 || document >= file.num_documents()) {
    fail(ExitCode::Usage, file.name(), " has no document ", document, ": it has ",
         file.num_documents(), ", counted from 0");
  }
  std::vector<int32_t> ids;
  for (int64_t i = file.documents()[document]; i < file.documents()[document + 1]; ++i) {
    const size_t begin = ids.size();
    ids.resize(begin + static_cast<size_t>(file.lengths()[i]));
    file.read(i, 0, vocab_or_any(options), std::span(ids).subspan(begin));
  }
  print_tokens(fmt::format("document {} of {}", document, file.name()), ids,
               options.text_tokenizer);
}

void dump_sample(const DataOptions& options) {
  DataSpec spec = options.spec;
  spec.kind = options.kind;
  spec.paths = {options.path};
  spec.vocab = vocab_or_any(options);
  spec.eod = options.eod;
  const auto dataset = open_dataset(spec);
  if (*options.sample < 0 || *options.sample >= dataset->size()) {
    fail(ExitCode::Usage, "there is no sample ", *options.sample, ": ", dataset->describe(),
         "; --num-samples asks for more");
  }
  std::vector<int32_t> ids(static_cast<size_t>(spec.seq) + 1);
  dataset->sample(*options.sample, ids);
  print_tokens(fmt::format("sample {} of {}", *options.sample, dataset->describe()), ids,
               options.text_tokenizer);
}

void run_dump(const DataOptions& options) {
  if (options.sample)
    dump_sample(options);
  else
    dump_document(options);
}

void run_merge(const DataOptions& options) {
  const BuildOptions& merge = options.build;
  const BuildResult result = merge_datasets(merge.inputs, merge.output, merge.overwrite);
  fmt::print("{}.bin, .idx: {} documents, {} tokens\n", dataset_prefix(merge.output),
             result.documents, result.tokens);
}

// A subcommand with one example that runs in a fresh checkout after those before it.
CLI::App* add(CLI::App& data, const std::string& name, const std::string& what,
              const std::string& example, const Options& options, void (*run)(const DataOptions&)) {
  CLI::App* command = data.add_subcommand(name, what);
  command->footer("Example:\n  " + example);
  command->callback([options, run] { run(*options); });
  return command;
}

void add_output_options(CLI::App* command, DataOptions& options) {
  command->add_option("-o,--output", options.build.output, "PREFIX of the .bin and .idx to write")
      ->required();
  command->add_flag("--overwrite", options.build.overwrite, "Replace the output if it exists");
}

void add_input_options(CLI::App* command, DataOptions& options) {
  command->add_option("PREFIX", options.path, "The files PREFIX.bin and PREFIX.idx, or one file")
      ->required();
  command->add_option("--kind", options.kind, "Format of the file")
      ->check(CLI::IsMember({"megatron", "llmc", "raw"}))
      ->capture_default_str();
  command->add_option(
      "--vocab", options.vocab,
      "Size of the vocabulary (raw: above 65536 the tokens are uint32, else uint16)");
  command->add_option("--eod", options.eod, "Id that separates documents (llmc and raw)");
}

}  // namespace

void add_data_command(CLI::App& root) {
  CLI::App& data = *root.add_subcommand("data", "Make, describe, verify and print token files");
  data.require_subcommand(1);
  data.footer("Example:\n  ferry data info data/quickstart/train");
  const auto options = std::make_shared<DataOptions>();
  const std::string moby = "configs/data/moby_dick.jsonl";

  CLI::App* build =
      add(data, "build", "Tokenize text into PREFIX.bin and PREFIX.idx",
          "ferry data build " + moby + " -o data/moby --append-eod", options, run_build);
  build->add_option("IN", options->build.inputs, "Text: .jsonl (an object a line) or .txt files")
      ->required();
  add_output_options(build, *options);
  build
      ->add_option("--tokenizer", options->build_tokenizer,
                   "byte, a tokenizer.json, or a folder with encoder.json and vocab.bpe")
      ->capture_default_str();
  build->add_flag("--append-eod", options->build.append_eod,
                  "End every document with the tokenizer's end-of-document id");
  build->add_option("--json-key", options->build.json_key, "Key of the text in .jsonl")
      ->capture_default_str();
  build->add_flag("--vocab-check", options->check_vocab,
                  "Read the result again and verify every id against the tokenizer");

  CLI::App* info = add(data, "info", "Count documents and tokens, and measure their entropy",
                       "ferry data info data/moby", options, run_info);
  add_input_options(info, *options);
  info->add_flag("--json", options->json, "Print JSON");

  CLI::App* check = add(data, "check", "Verify the structure of the files and every token id",
                        "ferry data check data/moby --vocab 257", options, run_check);
  add_input_options(check, *options);

  CLI::App* dump =
      add(data, "dump", "Print the tokens of a document, or of a training sample",
          "ferry data dump data/moby --sample 0 --seq 64 --tokenizer byte", options, run_dump);
  add_input_options(dump, *options);
  CLI::Option* document = dump->add_option("--document", options->document,
                                           "Number of the document, from 0 (default 0)");
  CLI::Option* seq = dump->add_option("--seq", options->spec.seq, "Tokens per sample (model.seq)");
  CLI::Option* sample =
      dump->add_option("--sample", options->sample, "Number of the sample in the order of the run");
  sample->needs(seq)->excludes(document);
  dump->add_option("--num-samples", options->spec.num_samples,
                   "Samples of the run, which fix its order (default: one epoch)");
  dump->add_option("--seed", options->spec.seed, "Seed of the run (run.seed)")
      ->capture_default_str();
  dump->add_option("--split", options->spec.split, "data.split of the run, such as 969,30,1");
  dump->add_option("--split-index", options->spec.split_index, "0 train, 1 valid, 2 test")
      ->check(CLI::Range(0, 2));
  dump->add_option("--tokenizer", options->text_tokenizer, "Print the text too");

  CLI::App* merge = add(data, "merge", "Put the documents of several files into one",
                        "ferry data merge data/moby data/moby -o data/twice", options, run_merge);
  merge->add_option("IN", options->build.inputs, "PREFIX of the files to read, in order")
      ->required();
  add_output_options(merge, *options);
}

}  // namespace ferry
