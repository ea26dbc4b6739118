#pragma once

// Token files of other projects, opened read-only: llm.c shards and raw arrays (OLMo and others).

#include "app/data/token_file.h"

#include <cstdint>
#include <string>

namespace ferry {

/// A shard of llm.c: 256 int32 of header (magic 20240520 version 1: u16 tokens; magic 20240801
/// version 7: u32 tokens; then the token count), then tokens. Every document starts with the id
/// `eod`; with eod < 0 the shard is one document. Throws Error(Data) for another header or size.
TokenFile open_llmc_shard(const std::string& path, int64_t eod);

/// Tokens and nothing else: u16 for vocabularies up to 65,536 ids, else u32. Every document ends
/// with the id `eod`; with eod < 0 the file is one document.
TokenFile open_raw_tokens(const std::string& path, int64_t vocab, int64_t eod);

/// By the name in `data.kind`: megatron, llmc or raw. Throws Error(Usage) for another.
TokenFile open_token_file(const std::string& kind, const std::string& path, int64_t vocab,
                          int64_t eod);

}  // namespace ferry
