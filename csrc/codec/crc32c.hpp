#pragma once
#include <cstdint>

#include "base/types.hpp"

namespace accdp {

/// CRC-32C (Castagnoli, as iSCSI and ext4 use it). `seed`: the value of the bytes before, 0 at the start.
std::uint32_t crc32c(ConstBytes data, std::uint32_t seed = 0) noexcept;

namespace detail {
std::uint32_t crc32c_table(ConstBytes data,
                           std::uint32_t seed) noexcept;  ///< for any processor; what tests compare with
}

}  // namespace accdp
