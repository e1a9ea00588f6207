#pragma once
#include <cstddef>

namespace accdp {

// A page of the segment that is used for the first time costs its writer two to four microseconds, as much as a short
// operation takes. Of a region that is used from one end on, whoever comes to where there are none makes as many as
// there are, up to 256 KiB: so this befalls few operations, for not long, and few pages are made that nobody needs.

/// How far pages should reach in a region of `bytes`, where so much has them and the first `used` bytes need them.
std::size_t pages_ahead(std::size_t there, std::size_t used, std::size_t bytes) noexcept;

/// In [from, from + bytes) and around it, where there are none. Harmless where the kernel cannot: then they come as
/// they are written.
void make_pages(std::byte* from, std::size_t bytes) noexcept;

}  // namespace accdp
