#include "core/host_copy.h"

namespace ferry {
namespace {

template <class T>
std::vector<double> widen(Stream& stream, const Tensor& tensor) {
  const std::vector<T> elements = read_back<T>(stream, tensor);
  std::vector<double> wide;
  wide.reserve(elements.size());
  for (const T& element : elements) wide.push_back(static_cast<double>(element));
  return wide;
}

}  // namespace

std::vector<double> read_back_as_double(Stream& stream, const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::I32:
      return widen<int32_t>(stream, tensor);
    case DType::I64:
      return widen<int64_t>(stream, tensor);
    case DType::U8:
      return widen<uint8_t>(stream, tensor);
    default:
      break;
  }
  return dispatch_float(tensor.dtype(),
                        [&]<class T>() -> std::vector<double> { return widen<T>(stream, tensor); });
}

}  // namespace ferry
