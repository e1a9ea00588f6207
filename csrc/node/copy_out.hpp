#pragma once
#include <cstddef>

namespace accdp {

/// Copies a piece of an operation's result to where its caller wants it; `past_caches`: with non-temporal stores, which
/// save reading the place first and leave the slots where they are, but are slow where the place is in a cache.
void copy_out(void* to, const void* from, std::size_t bytes, bool past_caches) noexcept;

// What `past_caches` should be. Which is faster follows from where the place is, which nobody knows: docs/algorithms.md
// ("Memory traffic on a node") has the figures that these are chosen by.

/// Of a result of so many bytes in a place that the operation does not read.
bool is_past_own_caches(std::size_t bytes) noexcept;
/// Of results of so many bytes on all ranks of the node together, in places that the operation has just read, or that
/// little is lost by reading.
bool is_past_shared_cache(std::size_t bytes) noexcept;

}  // namespace accdp
