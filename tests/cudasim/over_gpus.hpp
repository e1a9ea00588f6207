#pragma once
// What groups are tried with whose ranks are in several GPU groups. Every rank is a process.
#include <functional>
#include <string>
#include <vector>

#include "device_checks.hpp"
#include "process_wire.hpp"

using Prepare = std::function<void(int rank)>;
using Check = std::function<void(const Gpu&)>;

void every_size(const Gpu& gpu);
/// Runs `check` in a group of processes, nodes[r] being rank r's, whose path on the device is to begin with these
/// words.
void run(const std::vector<int>& nodes, const std::string& path, const Prepare& prepare,
         const Check& check = every_size);
/// For Prepare.
void gpu_of(int gpu, int island = 1);

/// Operations on lengths around segments, with a rounding that would show an order: all roots, and of what is longest,
/// which takes most of the time, the first and the last.
void long_messages(const Gpu& gpu);
/// An average of bfloat16, in place: rounded alike on all ranks, which compare what they got.
void averages(const Gpu& gpu);
/// Blocks between some pairs of ranks only, so that nodes differ in the number of segments: none, and many.
void few_pairs(const Gpu& gpu);
/// The three above, and everything with blocks.
void both(const Gpu& gpu);
