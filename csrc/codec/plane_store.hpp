#pragma once
#include <span>

#include "base/types.hpp"
#include "codec/zstd_api.hpp"

namespace accdp {

// Byte planes in a stream, each stored in the way that suits it:
//
//   for each plane: u8 method, u32 size of its payload, little endian
//   for each plane: payload
//
//   method 0  the plane's bytes as they are
//   method 1  one byte: every byte of the plane is this one
//   method 2  one zstd frame of the plane
//   method 3  one usual byte and the exceptions from it (sparse_plane.hpp)
//   method 4  the same in two zstd frames (sparse_frames.hpp)
//
// A decoder needs neither the effort nor the version of libzstd that made a stream.

/// Writes planes, equally long and not empty, to `out`; returns the bytes, or 0 where they do not fit. Needs
/// zstd::why_not() to be empty.
std::size_t store_planes(zstd::Effort effort, std::span<const ConstBytes> planes, Bytes out);

/// Reads planes of `count` bytes from the beginning of `in`; returns how much of it they took. at[p] becomes where
/// plane p lies then: in `room`, which has room for all, or still in the stream. Throws CodecError, with the codec's
/// name, on anything else; reads nothing outside `in`.
std::size_t restore_planes(const char* codec, ConstBytes in, std::size_t count, std::byte* room,
                           std::span<const std::byte*> at);

}  // namespace accdp
