#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "base/types.hpp"

namespace accdp {

/// CRC-32C (Castagnoli, as iSCSI and ext4 use it). `seed`: the value of the bytes before, 0 at the start.
std::uint32_t crc32c(ConstBytes data, std::uint32_t seed = 0) noexcept;
/// The same of data whose runs of kCrcRun bytes, the last one shorter or not, have these checksums.
inline constexpr std::size_t kCrcRun = 1024;
std::uint32_t crc32c_joined(std::span<const std::uint32_t> runs, std::size_t bytes, std::uint32_t seed) noexcept;
/// Its remainders of four bits, for loops that have no table.
std::array<std::uint32_t, 16> crc32c_nibbles() noexcept;

namespace detail {
std::uint32_t crc32c_table(ConstBytes data,
                           std::uint32_t seed) noexcept;  ///< for any processor; what tests compare with
}

}  // namespace accdp
