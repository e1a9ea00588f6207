#include "mpi/exchange.hpp"

#include <climits>
#include <utility>

#include "mpi/world.hpp"

namespace accdp::mpi {
namespace {

/// Everybody's bytes on their way. MPI uses the members until all has come.
class Round {
 public:
  Round(const std::string& mine, int size)
      : mine_(mine), count_(static_cast<int>(mine.size())), counts_(size), offsets_(size) {}

  void sizes(MPI_Comm comm, const Deadline& deadline) {
    {
      auto lock = safe_turn();
      ACCDP_MPI(MPI_Iallgather(&count_, 1, MPI_INT, counts_.data(), 1, MPI_INT, comm, &request_));
    }
    complete(request_, deadline, "the exchange of sizes");
  }
  void data(MPI_Comm comm, const Deadline& deadline) {
    long total = 0;
    for (std::size_t i = 0; i < counts_.size(); total += counts_[i++]) offsets_[i] = static_cast<int>(total);
    if (total > INT_MAX)
      throw UsageError("all ranks together exchange " + std::to_string(total) + " bytes: expected less than 2 GiB");
    all_.resize(total);
    {
      auto lock = safe_turn();
      ACCDP_MPI(MPI_Iallgatherv(mine_.data(), count_, MPI_BYTE, all_.data(), counts_.data(), offsets_.data(), MPI_BYTE,
                                comm, &request_));
    }
    complete(request_, deadline, "the exchange of cards");
  }
  std::vector<std::string> parts() const {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < counts_.size(); ++i) parts.push_back(all_.substr(offsets_[i], counts_[i]));
    return parts;
  }

 private:
  const std::string mine_;
  const int count_;
  std::vector<int> counts_, offsets_;
  std::string all_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace

struct Exchange::Duplicate {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
};

Exchange::Exchange(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL) comm = world_comm();
  auto lock = safe_turn();
  ACCDP_MPI(MPI_Comm_size(comm, &size_));
  // Nobody would wait for the duplicate, and Open MPI crashes where a communicator is freed before its duplicate is
  // made.
  if (size_ == 1) return;
  duplicate_ = std::make_unique<Duplicate>();
  ACCDP_MPI(MPI_Comm_idup(comm, &duplicate_->comm, &duplicate_->request));
}

Exchange::~Exchange() {
  int done = 0;
  if (duplicate_ && !birthplace_.is_elsewhere() && is_initialized() && health() != Wire::kUnsafe) {
    const auto lock = turn();
    if (lock) MPI_Test(&duplicate_->request, &done, MPI_STATUS_IGNORE);
    if (done) MPI_Comm_free(&duplicate_->comm);
  }
  if (!done) static_cast<void>(duplicate_.release());  // MPI may still write there
}

std::vector<std::string> Exchange::allgather(const std::string& mine, double timeout_s) {
  if (size_ == 1) return {mine};
  if (!duplicate_) throw UsageError("an exchange among ranks that has failed: expected no use of it");
  if (mine.size() > INT_MAX)
    throw UsageError("data has " + std::to_string(mine.size()) + " bytes: expected less than 2 GiB");
  const Deadline deadline(timeout_s);
  auto round = std::make_unique<Round>(mine, size_);
  try {
    complete(duplicate_->request, deadline, "MPI_Comm_idup");
    round->sizes(duplicate_->comm, deadline);
    round->data(duplicate_->comm, deadline);
  } catch (...) {  // nobody can take a collective back: MPI may still read and write there
    static_cast<void>(round.release());
    static_cast<void>(duplicate_.release());
    throw;
  }
  return round->parts();
}

}  // namespace accdp::mpi
