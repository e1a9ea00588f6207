#pragma once
#include <cstddef>

namespace accdp {

/// As memcpy, which on AMD's processors may use "rep movsb": on Zen 4 that reads what another core or memory holds at
/// half the speed of vectors, and copies 2 GB/s where places differ by 1 to 15 bytes modulo 4 KiB. So there by vectors.
void copy_lines(void* to, const void* from, std::size_t bytes) noexcept;

/// With non-temporal stores: what is written goes to memory without its lines being asked for first, and is in no cache
/// then. Seen by who sees what this thread stores afterwards. copy_lines() where the processor has no such stores.
void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept;
bool has_stores_past_caches() noexcept;

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
