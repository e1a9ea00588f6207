#pragma once
// The collectives and messages of one group, each checked against what it must give.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/settings.hpp"
#include "ranks.hpp"

using namespace accdp;

using Ints = std::vector<std::int32_t>;
constexpr Datatype kType = Datatype::kI32;
constexpr std::size_t kChunk = (4 << 10) / sizeof(std::int32_t);
constexpr std::size_t kCounts[] = {0, 1, kChunk - 1, kChunk, kChunk + 1, 3 * kChunk + 7, 40 * kChunk};

Bytes bytes(Ints& data);

/// What rank `rank` gives; element i differs from its neighbours and from other ranks' elements.
Ints input(int rank, std::size_t count);
Ints sum_of_inputs(int size, std::size_t count);

void one_block(Group& group, std::size_t count);
void many_blocks(Group& group, std::size_t count);
void messages(Group& group, std::size_t count);
void everything(Group& group);  ///< of all kCounts

void change_sizes(const char* chunk, const char* flat, const char* ring, const char* eager);
