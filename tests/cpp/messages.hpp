#pragma once
#include <cstddef>
#include <vector>

#include "base/settings.hpp"
#include "ranks.hpp"

using Data = std::vector<std::byte>;

/// What one rank sends to another: different for each pair and number.
inline Data content(int from, int to, int number, std::size_t bytes) {
  Data data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(from * 59 + to * 31 + number * 7 + i);
  return data;
}

/// So that messages of a few kilobytes are long ones, and fill the ring.
inline void make_limits_small() {
  accdp::set_setting("ACCDP_EAGER_BYTES", "1k");
  accdp::set_setting("ACCDP_RING_BYTES", "8k");
}
