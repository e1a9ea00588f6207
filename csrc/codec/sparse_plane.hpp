#pragma once
#include <cstddef>

#include "base/types.hpp"

namespace accdp {

/// A run of bytes that are nearly all the same, stored as that byte and then its exceptions in order, each as
/// u8 distance from where the last one ended and u8 value. Distance 255 is no exception: 255 usual bytes, read on.
/// Where one byte in a hundred differs, this takes half of what the Huffman coder behind a fast match finder does.
constexpr std::byte kFar{255};

/// Distances and values of the exceptions, apart; a distance of kFar has no value.
struct Exceptions {
  ConstBytes distances, values;
  std::size_t sparse_bytes() const { return 1 + distances.size() + values.size(); }
};

/// Finds them, in `room` of twice the bytes of `in`.
Exceptions find_exceptions(std::byte usual, ConstBytes in, std::byte* room);
/// Fills all of `out`; false where the exceptions, which may come from anywhere, are none of so many bytes. There must
/// be as many values as distances other than kFar.
bool fill_in(std::byte usual, const Exceptions& exceptions, Bytes out);

/// Writes the stored form, sparse_bytes() of it, to `out`.
void write_sparse(std::byte usual, const Exceptions& exceptions, std::byte* out);
/// Fills all of `out`; false where `in` is nothing that write_sparse() writes for that many bytes.
bool decode_sparse(ConstBytes in, Bytes out);

}  // namespace accdp
