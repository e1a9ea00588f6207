#pragma once
#include <cstddef>

namespace accdp {

/// Copies a piece of an operation's result to where its caller wants it. Where what this node's ranks give to the
/// operation and get from it, `of_bytes` in all, is too long for the caches it is written past them (non-temporal
/// stores), which saves reading the place first and leaves the slots where they are. What fits stays for the caller.
void copy_out(void* to, const void* from, std::size_t bytes, std::size_t of_bytes) noexcept;

}  // namespace accdp
