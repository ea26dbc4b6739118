#include "app/data/bpe_tokenizer.h"

#include "app/data/byte_alphabet.h"
#include "app/data/gpt2_scanner.h"
#include "app/data/utf8.h"
#include "core/check.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace ferry {
namespace {

// Words repeat: most pieces come from the cache. Long pieces hardly ever do.
constexpr size_t kCachedPieces = size_t{1} << 17;
constexpr size_t kCachedBytes = 64;

constexpr uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Cuts `text` at the added tokens: other(part) for the text between them, found(id) for a token.
// `tokens` are sorted by falling length, so that the longest wins.
template <class Other, class Found>
void cut_added_tokens(std::string_view text, const std::vector<AddedToken>& tokens, Other&& other,
                      Found&& found) {
  std::array<bool, 256> starts{};
  for (const AddedToken& token : tokens)
    starts[static_cast<unsigned char>(token.content[0])] = true;
  size_t begin = 0;
  for (size_t i = 0; i < text.size() && !tokens.empty();) {
    const AddedToken* match = nullptr;
    if (starts[static_cast<unsigned char>(text[i])]) {
      for (const AddedToken& token : tokens) {
        if (text.substr(i).starts_with(token.content)) {
          match = &token;
          break;
        }
      }
    }
    if (match == nullptr) {
      ++i;
      continue;
    }
    if (i > begin) other(text.substr(begin, i - begin));
    found(match->id);
    begin = i += match->content.size();
  }
  if (begin < text.size()) other(text.substr(begin));
}

}  // namespace

BpeTokenizer::BpeTokenizer(const BpeModel& model)
    : file_(model.file),
      nfc_(model.nfc),
      add_prefix_space_(model.add_prefix_space),
      ignore_merges_(model.ignore_merges) {
  load_vocab(model);
  load_merges(model);
  for (const AddedToken& token : model.added_tokens) {
    (token.normalized ? normalized_added_ : raw_added_).push_back(token);
    if (nfc_ && token.normalized) normalized_added_.back().content = to_nfc(token.content);
  }
  const auto longer = [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  };
  std::stable_sort(raw_added_.begin(), raw_added_.end(), longer);
  std::stable_sort(normalized_added_.begin(), normalized_added_.end(), longer);
}

void BpeTokenizer::load_vocab(const BpeModel& model) {
  constexpr int32_t kLargestId = (1 << 24) - 1;  // a damaged file must not ask for all memory
  const auto put = [&](const std::string& token, int32_t id, std::string bytes) {
    if (id < 0 || id > kLargestId) {
      fail(ExitCode::Data, file_, ": token '", token, "' has the id ", id, ", which is not in [0, ",
           kLargestId, "]");
    }
    const auto at = static_cast<size_t>(id);
    if (at >= bytes_of_.size()) {
      bytes_of_.resize(at + 1);
      is_known_.resize(at + 1, 0);
    }
    if (is_known_[at] && bytes_of_[at] != bytes) {
      fail(ExitCode::Data, file_, ": tokens '", token, "' and '", spell_bytes(bytes_of_[at]),
           "' have the same id ", id);
    }
    is_known_[at] = 1;
    bytes_of_[at] = std::move(bytes);
  };
  std::unordered_map<std::string, int32_t> added;
  for (const AddedToken& token : model.added_tokens) {
    put(token.content, token.id, token.content);
    added.emplace(token.content, token.id);
  }
  for (const auto& [token, id] : model.vocab) {
    const auto same = added.find(token);
    if (same != added.end() && same->second == id) continue;  // stands for itself, unspelled
    put(token, id, unspell_bytes(token).value_or(token));
    if (ignore_merges_) id_of_.emplace(bytes_of_[static_cast<size_t>(id)], id);
  }
  for (int b = 0; b < 256; ++b) {
    const std::string spelling = spell_bytes(std::string(1, static_cast<char>(b)));
    const auto found = model.vocab.find(spelling);
    if (found == model.vocab.end()) {
      fail(ExitCode::Data, file_, ": the vocabulary has no token '", spelling, "' for byte ", b,
           "; it is not byte-level");
    }
    byte_id_[b] = found->second;
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    const auto in_vocab = model.vocab.find(name);
    const auto in_added = added.find(name);
    if (in_added != added.end())
      eod_ = in_added->second;
    else if (in_vocab != model.vocab.end())
      eod_ = in_vocab->second;
    if (eod_ >= 0) break;
  }
}

void BpeTokenizer::load_merges(const BpeModel& model) {
  const auto id_of = [&](const std::string& token, size_t number) {
    const auto found = model.vocab.find(token);
    if (found == model.vocab.end()) {
      fail(ExitCode::Data, file_, ": merge ", number, " needs the token '", token,
           "', which is not in the vocabulary");
    }
    return found->second;
  };
  merges_.reserve(model.merges.size());
  for (size_t i = 0; i < model.merges.size(); ++i) {
    const auto& [left, right] = model.merges[i];
    const Merge merge{static_cast<int32_t>(i), id_of(left + right, i)};
    merges_.emplace(pair_key(id_of(left, i), id_of(right, i)), merge);
  }
}

const BpeTokenizer::Merge* BpeTokenizer::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// A heap of possible merges over a linked list of tokens: n log n for pieces of any length. Entries
// that an earlier merge has made stale are recognised by the ids of their two tokens.
void BpeTokenizer::merge_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Node {
    int32_t id, previous, next;
  };
  struct Candidate {
    int32_t rank, left, left_id, right_id, result;
    bool operator>(const Candidate& other) const {
      return std::pair(rank, left) > std::pair(other.rank, other.left);
    }
  };
  CHECK(piece.size() < size_t{1} << 31, "a piece of ", piece.size(), " bytes");
  const auto size = static_cast<int32_t>(piece.size());
  std::vector<Node> nodes;
  for (int32_t i = 0; i < size; ++i) {
    nodes.push_back(
        {byte_id_[static_cast<unsigned char>(piece[i])], i - 1, i + 1 < size ? i + 1 : -1});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](int32_t left) {
    if (left < 0 || nodes[left].next < 0) return;
    const int32_t left_id = nodes[left].id, right_id = nodes[nodes[left].next].id;
    if (const Merge* merge = find_merge(left_id, right_id)) {
      candidates.push({merge->rank, left, left_id, right_id, merge->result});
    }
  };
  for (int32_t i = 0; i < size; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Node& left = nodes[best.left];
    if (left.id != best.left_id || left.next < 0 || nodes[left.next].id != best.right_id) continue;
    Node& right = nodes[left.next];
    left.id = best.result;
    left.next = right.next;
    right.id = -1;  // no longer in the list
    if (left.next >= 0) nodes[left.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (int32_t i = 0; i >= 0 && i < size; i = nodes[i].next) ids.push_back(nodes[i].id);
}

void BpeTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& ids) {
  std::string key(piece);
  if (const auto whole = id_of_.find(key); whole != id_of_.end()) {
    ids.push_back(whole->second);
    return;
  }
  if (piece.size() > kCachedBytes) {
    merge_piece(piece, ids);
    return;
  }
  auto found = cache_.find(key);
  if (found == cache_.end()) {
    if (cache_.size() >= kCachedPieces) cache_.clear();
    std::vector<int32_t> tokens;
    merge_piece(piece, tokens);
    found = cache_.emplace(std::move(key), std::move(tokens)).first;
  }
  ids.insert(ids.end(), found->second.begin(), found->second.end());
}

void BpeTokenizer::encode_plain(std::string_view text, std::vector<int32_t>& ids) {
  std::string prefixed;
  if (add_prefix_space_ && !text.starts_with(' ')) {
    prefixed = " " + std::string(text);
    text = prefixed;
  }
  while (!text.empty()) {
    const size_t size = scan_gpt2_piece(text);
    encode_piece(text.substr(0, size), ids);
    text.remove_prefix(size);
  }
}

void BpeTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) {
  const auto add = [&](int32_t id) { ids.push_back(id); };
  cut_added_tokens(
      text, raw_added_,
      [&](std::string_view part) {
        const std::string normalized = nfc_ ? to_nfc(part) : std::string(part);
        cut_added_tokens(
            normalized, normalized_added_,
            [&](std::string_view plain) { encode_plain(plain, ids); }, add);
      },
      add);
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || !is_known_[id]) {
      fail(ExitCode::Data, "token id ", id, " is not in the vocabulary of ", file_, " (",
           vocab_size(), " ids)");
    }
    text += bytes_of_[id];
  }
  return text;
}

}  // namespace ferry
