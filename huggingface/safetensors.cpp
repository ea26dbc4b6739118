#include "huggingface/safetensors.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "huggingface/config_json.h"

namespace ferry {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr int64_t kMaxElements = int64_t{1} << 50;

class Parser {
 public:
  Parser(std::string where, int64_t data_bytes)
      : where_(std::move(where)), data_bytes_(data_bytes) {}

  std::vector<SafeTensor> parse(const std::string& text) {
    const Json json = parse_strict_json(text, where_);
    if (!json.is_object()) refuse("the header is not a JSON object");
    std::vector<SafeTensor> tensors;
    for (const auto& [name, entry] : json.items())
      if (name != "__metadata__") tensors.push_back(tensor(name, entry));
    std::sort(tensors.begin(), tensors.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
    int64_t end = 0;
    for (const SafeTensor& one : tensors) {
      if (one.begin < end) refuse("tensor ", one.name, " overlaps the one before it");
      if (one.begin > end) refuse("there is a gap before tensor ", one.name);
      end += one.bytes();
    }
    if (end != data_bytes_)
      refuse("its tensors have ", end, " bytes, but ", data_bytes_, " follow the header");
    return tensors;
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ExitCode::Storage, "error: ", where_, " is no valid safetensors file\n  why : ", parts...);
  }

  int64_t integer(const Json& value, int64_t high, const std::string& what) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(high))
      refuse(what, " is no integer from 0 to ", high);
    return value.get<int64_t>();
  }

  SafeTensor tensor(const std::string& name, const Json& entry) const {
    const std::string defect = hf_name_defect(name);
    if (!defect.empty()) refuse(defect);
    if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
        !entry.contains("shape") || !entry.contains("data_offsets"))
      refuse("tensor ", name, " does not have exactly dtype, shape and data_offsets");
    SafeTensor tensor;
    tensor.name = name;
    const Json& dtype = entry.at("dtype");
    if (dtype == "F32")
      tensor.dtype = DType::F32;
    else if (dtype == "BF16")
      tensor.dtype = DType::BF16;
    else
      refuse("tensor ", name, " has dtype ", dtype.dump(-1, ' ', true).substr(0, 40),
             ", but only F32 and BF16 can be imported");
    const Json& shape = entry.at("shape");
    if (!shape.is_array() || shape.empty() || shape.size() > Shape::kMaxRank)
      refuse("the shape of tensor ", name, " is no list of 1 to 4 integers");
    std::vector<int64_t> dims;
    int64_t elements = 1;
    for (const Json& dim : shape) {
      dims.push_back(integer(dim, kMaxElements, "a dim of tensor " + name));
      if (__builtin_mul_overflow(elements, dims.back(), &elements) || elements > kMaxElements)
        refuse("tensor ", name, " has more than ", kMaxElements, " elements");
    }
    tensor.shape = Shape(dims);
    const Json& offsets = entry.at("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2)
      refuse("data_offsets of tensor ", name, " are no two integers");
    tensor.begin = integer(offsets[0], data_bytes_, "data_offsets of tensor " + name);
    const int64_t end = integer(offsets[1], data_bytes_, "data_offsets of tensor " + name);
    if (end < tensor.begin || end - tensor.begin != tensor.bytes())
      refuse("data_offsets of tensor ", name, " span ", end - tensor.begin,
             " bytes, but its shape and dtype take ", tensor.bytes());
    return tensor;
  }

  std::string where_;
  int64_t data_bytes_;
};

}  // namespace

std::string hf_name_defect(const std::string& name) {
  const auto is_legal = [](unsigned char c) {
    return c < 128 && (std::isalnum(c) || c == '_' || c == '.' || c == '-');
  };
  if (name.empty() || name.size() > 512) return "the name of a tensor is empty or too long";
  if (!std::all_of(name.begin(), name.end(), is_legal))
    return "the name of a tensor has characters other than letters, digits, _, . and -";
  return "";
}

std::string safetensors_header(const std::vector<SafeTensor>& tensors) {
  nlohmann::ordered_json json = {{"__metadata__", {{"format", "pt"}}}};
  int64_t end = 0;
  for (const SafeTensor& tensor : tensors) {
    CHECK(tensor.begin == end, "tensor ", tensor.name, " begins at ", tensor.begin, ", not ", end);
    end += tensor.bytes();
    json[tensor.name] = {{"dtype", tensor.dtype == DType::BF16 ? "BF16" : "F32"},
                         {"shape", tensor.shape.dims()},
                         {"data_offsets", {tensor.begin, end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes + text;
}

SafeHeader read_safetensors_header(const File& file, const std::string& where) {
  const int64_t size = file.size();
  uint64_t length = 0;
  constexpr int64_t kPrefix = sizeof(length);
  const auto refuse = [&](const std::string& why) {
    fail(ExitCode::Storage, "error: ", where, " is no valid safetensors file\n  why : ", why);
  };
  if (size < kPrefix) refuse("it is shorter than 8 bytes");
  file.read_at(&length, sizeof(length), 0);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes) ||
      static_cast<int64_t>(length) > size - kPrefix)
    refuse(concat("its header would have ", length, " bytes, but the file has ", size));
  std::string text(length, '\0');
  file.read_at(text.data(), text.size(), kPrefix);
  if (text.empty() || text.front() != '{') refuse("its header does not begin with {");
  SafeHeader header;
  header.data_start = kPrefix + static_cast<int64_t>(length);
  header.tensors = Parser(where, size - header.data_start).parse(text);
  return header;
}

}  // namespace ferry
