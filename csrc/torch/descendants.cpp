// Groups that are made from a group.
#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "torch/process_group.hpp"

namespace accdp::torch_backend {
namespace {

ProcessGroupAccdp::Makers& makers() {
  static ProcessGroupAccdp::Makers instance;
  return instance;
}

}  // namespace

void ProcessGroupAccdp::set_makers(Makers made) { makers() = std::move(made); }

c10::intrusive_ptr<c10d::Backend> ProcessGroupAccdp::split(const c10::intrusive_ptr<c10d::Store>&,
                                                           const std::vector<int>& ranks,
                                                           const c10::intrusive_ptr<Options>& options) {
  const auto me = std::ranges::find(ranks, rank_);
  if (me == ranks.end()) return nullptr;
  std::string label = origin_.label;
  {
    std::lock_guard lock(splits_mutex_);
    label.append(".").append(std::to_string(splits_[ranks]++));
  }
  const auto self = c10::intrusive_ptr<ProcessGroupAccdp>::reclaim_copy(this);
  return makers().split(self, ranks, static_cast<int>(me - ranks.begin()), options, label);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupAccdp::shrink(const std::vector<int64_t>& ranks_to_exclude,
                                                            int shrink_flags,
                                                            const c10::intrusive_ptr<Options>& options) {
  constexpr int kAbort = 1;  // torch.distributed.SHRINK_ABORT
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank)
    if (std::ranges::find(ranks_to_exclude, rank) == ranks_to_exclude.end()) ranks.push_back(rank);
  const auto me = std::ranges::find(ranks, rank_);
  TORCH_CHECK_VALUE(me != ranks.end(), "rank ", rank_, " of ", size_,
                    ": shrink: expected a call on ranks that stay, got one of those to exclude");
  if (shrink_flags & kAbort) abort_because("shrink() was called with SHRINK_ABORT");
  const auto self = c10::intrusive_ptr<ProcessGroupAccdp>::reclaim_copy(this);
  // Not numbered, as splits are: some ranks may have tried in vain, and others not.
  return makers().shrink(self, ranks, static_cast<int>(me - ranks.begin()), options ? options : getBackendOptions(),
                         origin_.label + ".shrunk");
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupAccdp::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                           const c10::intrusive_ptr<Options>& options, const int& rank,
                                                           const int& size) {
  const auto self = c10::intrusive_ptr<ProcessGroupAccdp>::reclaim_copy(this);
  return makers().merge(self, store, rank, size, options);
}

void ProcessGroupAccdp::behave_like(const ProcessGroupAccdp& other) {
  bcast_ = other.bcast_;
  set_deterministic(other.group_->deterministic());
}

}  // namespace accdp::torch_backend
