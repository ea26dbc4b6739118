#pragma once

// How well counting alone predicts the tokens of a file: what a trained model must beat.

#include "app/data/token_file.h"

namespace ferry {

struct Entropy {
  double unigram = 0;  // H(x), nats per token: the loss of a model that knows only frequencies
  double bigram = 0;   // H(x2 | x1) over neighbours within documents: of one that sees one token
};

/// Of the file's own counts. A file without neighbours has bigram entropy 0. Memory grows with the
/// number of different pairs.
Entropy token_entropy(const TokenFile& file);

}  // namespace ferry
