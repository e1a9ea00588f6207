#pragma once
#include <cstddef>

namespace accdp {

/// Copies a piece of a message's result to where its caller wants it. Of a message too long for the caches it is
/// written past them (non-temporal stores), which saves reading the place first and leaves the slots where they are.
void copy_out(void* to, const void* from, std::size_t bytes, std::size_t message_bytes) noexcept;

}  // namespace accdp
