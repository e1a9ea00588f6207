#pragma once
#include <cstddef>
#include <cstdint>

#include "base/types.hpp"

namespace accdp {

/// CRC-32C (Castagnoli, as iSCSI and ext4 use it). `seed`: the value of the bytes before, 0 at the start.
std::uint32_t crc32c(ConstBytes data, std::uint32_t seed = 0) noexcept;
/// The same of data in two parts, of the checksums of each.
std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::size_t second_bytes) noexcept;

namespace detail {
std::uint32_t crc32c_table(ConstBytes data,
                           std::uint32_t seed) noexcept;  ///< for any processor; what tests compare with
}

}  // namespace accdp
