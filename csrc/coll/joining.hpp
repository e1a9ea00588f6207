#pragma once
#include <memory>

#include "mpi/wire.hpp"
#include "node/board.hpp"

namespace accdp {

class Fabric;

/// The board in the memory behind `fd`, for a fabric that knows who its ranks are and no more yet. Where this rank
/// cannot have it, it tells all others, who wait for it or go on without, and throws.
std::shared_ptr<Board> map_board(const Fabric& fabric, int fd, Wire* wire);
/// Waits until every rank of the node has the board.
void await_mates(Fabric& fabric, double timeout_s);

}  // namespace accdp
