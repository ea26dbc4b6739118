#pragma once

// The two backends of embedding.h. Arguments are already checked, and `vocab` of the rows is given.

#include "core/ops/embedding.h"

namespace ferry::cpu {

void embedding_forward(const Tensor& y, const Tensor& weight, const Tensor& tokens,
                       const VocabularyRows& rows);
void embedding_backward(const Tensor& dweight, const Tensor& dy, const Tensor& tokens,
                        const VocabularyRows& rows);

}  // namespace ferry::cpu

namespace ferry::cuda {

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& weight, const Tensor& tokens,
                       const VocabularyRows& rows);
void embedding_backward(Stream& stream, const Tensor& dweight, const Tensor& dy,
                        const Tensor& tokens, const VocabularyRows& rows);

}  // namespace ferry::cuda
