#pragma once
#include <cstddef>

namespace accdp {

/// Bytes of a cache line: what copies, frames and slots are cut at, so that elements stay whole and copies aligned.
constexpr std::size_t kLine = 64;
/// The same of device memory: a kernel's accesses stay wide.
constexpr std::size_t kDeviceAlign = 256;
/// What a frame's length is a multiple of: no element of any datatype is cut.
constexpr std::size_t kFrameAlign = 16;

constexpr std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }
constexpr std::size_t round_up(std::size_t a, std::size_t to) { return ceil_div(a, to) * to; }
constexpr std::size_t round_down(std::size_t a, std::size_t to) { return a / to * to; }
constexpr std::size_t whole_lines(std::size_t bytes) { return round_up(bytes, kLine); }
constexpr std::size_t device_aligned(std::size_t bytes) { return round_up(bytes, kDeviceAlign); }

}  // namespace accdp
