#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "coll/device_route.hpp"

namespace accdp {

class Group;
class Pool;

/// What a stream held at one time, whatever becomes of the stream.
class StreamMark {
 public:
  /// On the thread whose stream it is: each has a default one of its own.
  StreamMark(int device, std::uintptr_t stream);
  StreamMark(const StreamMark&) = delete;
  ~StreamMark();

 private:
  friend class DevicePath;
  struct Passed;
  int device_;
  std::unique_ptr<Passed> passed_;
};

/// What the calls of one group on device memory share. Set up by its first one, on that call's device.
class DevicePath final : public DeviceRoute, public std::enable_shared_from_this<DevicePath> {
 public:
  explicit DevicePath(std::shared_ptr<Group> group);
  DevicePath(const DevicePath&) = delete;
  ~DevicePath() override;

  void admit(int device, std::uintptr_t stream) override;
  std::unique_ptr<Collectives> collectives(int device, std::uintptr_t stream) override;
  std::unique_ptr<HostCopies> fetch(int device, std::uintptr_t stream, const std::vector<DeviceBlock>& blocks,
                                    Owners owners = {}) override;
  /// For a call on another thread, later: on a stream of its own, after what was marked. deliver() returns when the
  /// device has done it.
  std::unique_ptr<HostCopies> fetch_behind(const StreamMark& mark, const std::vector<DeviceBlock>& blocks,
                                           Owners owners = {});
  void await(int device, std::uintptr_t stream) override;
  bool settle(bool has_failed = false) noexcept override;
  Asker asker() const noexcept override;
  /// How data goes: "not used yet", "shared GPU, ordered by events", "peer GPUs, ordered by the host (why)",
  /// "2 GPUs apart, ..." or "2 islands of peer GPUs, ..., joined through host memory", "staged: why".
  std::string describe() const override;

 private:
  friend class DeviceCollectives;
  struct State;
  struct Order;
  std::unique_ptr<HostCopies> copies_of(int device, Order order, const std::vector<DeviceBlock>& blocks, Owners owners);
  template <class Work>
  auto telling_others(const char* what, Work work);
  std::shared_ptr<Group> group_;
  std::unique_ptr<State> state_;
};

/// The collectives on memory of one CUDA device, for one call (Group's argument `via`). The work begins after what
/// `stream` holds now and later work of `stream` begins after it; the call returns when it has been handed over, and
/// may block the host until the other ranks have come.
class DeviceCollectives : public Collectives {
 public:
  /// `stream`: a cudaStream_t. owners: kept where the caller does not settle() after a failure itself. Throws as
  /// admit() does.
  DeviceCollectives(std::shared_ptr<DevicePath> path, int device, std::uintptr_t stream,
                    DeviceRoute::Owners owners = {});
  DeviceCollectives(const DeviceCollectives&) = delete;
  ~DeviceCollectives() override { end(); }
  /// The same, for who waits in a way of its own.
  void end() noexcept;
  bool has_failed() const { return has_failed_; }

  MemoryKind memory(const Asked& asked) const override;
  void bcast(Context& context, Bytes data, int root) override;
  void reduce_to(Context& context, ConstBytes in, Bytes out, const Reduction& how, int receiver) override;
  void allgather(Context& context, ConstBytes in, const std::vector<Bytes>& outs) override;
  void reduce_scatter(Context& context, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) override;
  void gather(Context& context, ConstBytes in, const std::vector<Bytes>& outs, int root) override;
  void scatter(Context& context, const std::vector<ConstBytes>& ins, Bytes out, int root) override;
  void alltoall(Context& context, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) override;
  /// This one, from now on.
  Collectives& in_rank_order() override;

 private:
  template <class Shared, class Between>
  void run(Context& context, Shared shared, Between between);
  template <class Algorithm>
  void whole(const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs, Algorithm algorithm);
  /// For what is staged.
  Collectives& on_host() const { return in_rank_order_ ? ordered_collectives() : host_collectives(); }

  std::shared_ptr<DevicePath> path_;
  int device_;
  std::uintptr_t stream_;
  DeviceRoute::Owners owners_;
  bool in_rank_order_ = false, has_failed_ = false;
};

}  // namespace accdp
