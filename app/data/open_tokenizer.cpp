#include "app/data/tokenizer.h"

#include "app/data/bpe_files.h"
#include "app/data/bpe_tokenizer.h"
#include "app/data/byte_tokenizer.h"

namespace ferry {

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  return std::make_unique<BpeTokenizer>(load_bpe_model(name));
}

}  // namespace ferry
