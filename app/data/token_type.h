#pragma once

// The integer types in which files store token ids.

#include "core/check.h"

#include <cstdint>
#include <limits>
#include <string_view>

namespace ferry {

/// The value is the dtype code of Megatron `.idx` files, where the type has one.
enum class TokenType : uint8_t { U32 = 0, U8 = 1, I8 = 2, I16 = 3, I32 = 4, I64 = 5, U16 = 8 };

/// Calls body.operator()<T>() with the C++ type.
template <class Body>
decltype(auto) dispatch_token_type(TokenType type, Body&& body) {
  switch (type) {
    case TokenType::U8:
      return body.template operator()<uint8_t>();
    case TokenType::I8:
      return body.template operator()<int8_t>();
    case TokenType::I16:
      return body.template operator()<int16_t>();
    case TokenType::I32:
      return body.template operator()<int32_t>();
    case TokenType::I64:
      return body.template operator()<int64_t>();
    case TokenType::U16:
      return body.template operator()<uint16_t>();
    case TokenType::U32:
      return body.template operator()<uint32_t>();
  }
  fail(ExitCode::Internal, "unknown token type ", static_cast<int>(type));
}

inline int64_t size_of(TokenType type) {
  return dispatch_token_type(type, []<class T>() { return static_cast<int64_t>(sizeof(T)); });
}

inline std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::U8:
      return "u8";
    case TokenType::I8:
      return "i8";
    case TokenType::I16:
      return "i16";
    case TokenType::I32:
      return "i32";
    case TokenType::I64:
      return "i64";
    case TokenType::U16:
      return "u16";
    case TokenType::U32:
      return "u32";
  }
  return "?";
}

/// The type that writers of `.bin/.idx` choose: u16 below 65,500 ids, else i32 (Megatron's rule).
inline TokenType token_type_for(int64_t vocab) {
  return vocab < 65500 ? TokenType::U16 : TokenType::I32;
}

}  // namespace ferry
