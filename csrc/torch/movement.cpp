// c10d's collectives that only move data, in terms of the group's: arguments are checked at the call,
// tensors become memory, the rest runs in order (queue.hpp).
#include <algorithm>
#include <numeric>

#include "torch/process_group.hpp"

namespace accdp::torch_backend {
namespace {

using c10d::OpType;

/// Sizes along the first dimension as pieces of the tensor's memory; empty splits mean equal parts.
template <class Block>
std::vector<Block> split_parts(const Operand& operand, const std::vector<int64_t>& splits, int size) {
  if (splits.empty()) return parts<Block>(operand, size);
  const std::size_t row = operand.rows() ? operand.bytes().size() / operand.rows() : 0;
  std::vector<Block> blocks;
  blocks.reserve(size);
  std::size_t at = 0;
  for (int64_t rows : splits) {
    blocks.push_back(operand.bytes().subspan(at, rows * row));
    at += rows * row;
  }
  return blocks;
}

/// Checks how a rank's tensor is split; returns the elements of what it sends to itself.
std::int64_t own_elements(const Checks& checks, const char* which, const at::Tensor& tensor,
                          const std::vector<int64_t>& splits) {
  if (splits.empty()) {  // elements count, not rows, as for Gloo
    if (tensor.numel() % checks.size)
      checks.fail(c10::str(which, ": expected a multiple of ", checks.size, " elements, got ", tensor.numel()));
    return tensor.numel() / checks.size;
  }
  const std::int64_t rows = tensor.dim() ? tensor.size(0) : 0;
  const bool are_parts =
      std::all_of(splits.begin(), splits.end(), [&](auto part) { return 0 <= part && part <= rows; });
  if (splits.size() != std::size_t(checks.size) || !are_parts ||
      std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) != rows)
    checks.fail(c10::str(which, " splits: expected ", checks.size, " numbers of rows, none below 0 and together ", rows,
                         ", got ", at::IntArrayRef(splits)));
  return rows ? splits[checks.rank] * (tensor.numel() / rows) : 0;
}

}  // namespace

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const Checks checks = checks_of("broadcast");
  checks.root(options.rootRank, size_);
  checks.root_tensor(options.rootTensor, tensors.size());
  checks.dense(tensors);
  checks.reachable(tensors, devices_.type());
  checks.single_on_device(tensors);
  checks.same_type_and_sizes(tensors);
  const int root = static_cast<int>(options.rootRank);
  const auto first = static_cast<std::size_t>(options.rootTensor);
  const bool is_root = root == rank_;
  // Root's own tensor changes where it takes what the others decode, which of integers is the same.
  const bool is_rounded = bcast_.bound.value > 0 && tensors[first].is_floating_point();
  const bool writes = !is_root || tensors.size() > 1 || is_rounded;
  auto memory = checks.operands(tensors, writes ? Operand::kReadWrite : Operand::kRead);
  return launch(
      {OpType::BROADCAST, "accdp:broadcast", tensors, tensors, options.timeout, options.asyncOp},
      [memory = std::move(memory), root, first, is_root, is_rounded, call = bcast_](Group& group, double timeout_s,
                                                                                    const Execution& way) {
        // On one node "auto" never compresses, and device memory has a way of its own.
        const bool stays = way.route && call.codec == "auto" && group.topology().nodes() == 1;
        if (call.codec == "none" || stays) {
          group.bcast(memory[first].bytes(), memory[first].type(), root, timeout_s, way.via);
        } else {
          StreamOptions how = call.options();
          how.root_takes_decoded = true;
          const Operand::Use use = !is_root ? Operand::kWrite : is_rounded ? Operand::kReadWrite : Operand::kRead;
          HostView view(way, {&memory[first], 1}, use);
          how.on_device = view.on_device();
          group.bcast_stream({{view[0], memory[first].type()}}, root, how, timeout_s);
          view.deliver();
        }
        for (const Operand& other : memory) copy(other.bytes(), memory[first].bytes());
        give_back(memory);
      });
}

void ProcessGroupAccdp::set_bcast(StreamCall call) {
  call.options();  // throws where they make no sense
  bcast_ = std::move(call);
}

c10::intrusive_ptr<Work> ProcessGroupAccdp::bcast_stream(Tensors tensors, Tensors references, int root,
                                                         const StreamCall& call, bool is_async, Milliseconds timeout,
                                                         std::shared_ptr<StreamReport> report) {
  const Checks checks = checks_of("bcast_compressed");
  checks.root(root, size_);
  checks.dense(tensors);
  checks.reachable(tensors, devices_.type());
  const StreamOptions options = call.options();
  auto memory = checks.operands(tensors, root == rank_ ? Operand::kRead : Operand::kReadWrite);
  Operands old;
  for (std::size_t i = 0; i < references.size(); ++i) {
    if (!references[i].defined()) continue;
    if (references[i].device() != tensors[i].device())
      checks.fail("a reference is on " + references[i].device().str() + ", expected " + tensors[i].device().str() +
                  " as its tensor");
    old.emplace_back(references[i], Operand::kRead);
  }
  const auto use = root == rank_ ? Operand::kRead : Operand::kWrite;
  const Plan plan{OpType::BROADCAST, "accdp:bcast_compressed", tensors, tensors, timeout, is_async, {}, true};
  return launch_work(
      plan, place_of(plan),
      [memory = std::move(memory), old = std::move(old), references, root, options, use, report = std::move(report)](
          Group& group, double timeout_s, const Execution& way) {
        Operands all = memory;
        all.insert(all.end(), old.begin(), old.end());
        std::vector<Operand::Use> uses(memory.size(), use);
        uses.resize(all.size(), Operand::kRead);
        HostView view(way, all, uses);
        StreamOptions how = options;
        how.on_device = view.on_device();
        std::vector<Piece> pieces;
        std::size_t next = memory.size();
        for (std::size_t i = 0; i < memory.size(); ++i) {
          const bool has_reference = i < references.size() && references[i].defined();
          pieces.push_back({view[i], memory[i].type(), has_reference ? ConstBytes(view[next++]) : ConstBytes()});
        }
        *report = group.bcast_stream(std::move(pieces), root, how, timeout_s);
        view.deliver();
        give_back(memory);
      });
}

c10::intrusive_ptr<Work> ProcessGroupAccdp::table(std::vector<std::int64_t> row,
                                                  std::shared_ptr<std::vector<std::int64_t>> rows) {
  rows->resize(row.size() * size_);
  const Plan plan{OpType::ALLGATHER, "accdp:all_gather", {}, {}, c10d::kUnsetTimeout, true};
  return launch_work(plan, at::kCPU,
                     [row = std::move(row), rows = std::move(rows)](Group& group, double timeout_s, const Execution&) {
                       const ConstBytes mine = std::as_bytes(std::span(row));
                       const Bytes all = std::as_writable_bytes(std::span(*rows));
                       std::vector<Bytes> outs;
                       for (std::size_t at = 0; at < all.size(); at += mine.size())
                         outs.push_back(all.subspan(at, mine.size()));
                       group.allgather(mine, outs, Datatype::kC128, timeout_s, host_collectives());
                     });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::allgather(Lists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  const Checks checks = checks_of("allgather");
  if (inputs.empty()) checks.fail("requires non-empty input tensor list");
  if (inputs.size() != outputs.size()) checks.fail("requires input/output tensor lists to have the same length");
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].size() != inputs.size() * size_)
      checks.fail("invalid output tensor list at index " + std::to_string(i) + " (expected length " +
                  std::to_string(inputs.size() * size_) + ", got " + std::to_string(outputs[i].size()) + ")");
  const Tensors all = flat(outputs);
  checks.dense(inputs);
  checks.dense(all);
  checks.reachable(inputs, devices_.type());
  checks.reachable(all, devices_.type());
  checks.single_on_device(inputs);
  checks.same_type_and_sizes(inputs);
  checks.same_type(all, inputs[0]);
  if (inputs.size() > 1) checks.like(all, inputs[0]);
  // Blocks may differ in size between ranks; this rank's own must fit.
  const std::size_t mine = rank_ * inputs.size();
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (const Tensors& list : outputs) checks.like({list[mine + i]}, inputs[i]);
  auto ins = checks.operands(inputs, Operand::kRead);
  auto outs = checks.operands(all, Operand::kWrite);
  const std::size_t k = inputs.size(), size = size_;
  return launch(
      {OpType::ALLGATHER, "accdp:all_gather", inputs, all, options.timeout, options.asyncOp, k > 1 ? outputs : Lists()},
      [ins = std::move(ins), outs = std::move(outs), k, size](Group& group, double timeout_s, const Execution& way) {
        for (std::size_t i = 0; i < k; ++i) {
          std::vector<Bytes> blocks;
          for (std::size_t r = 0; r < size; ++r) blocks.push_back(outs[r * k + i].bytes());
          group.allgather(ins[i].bytes(), blocks, ins[i].type(), timeout_s, way.via);
        }
        for (std::size_t list = 1; list < k; ++list)
          for (std::size_t i = 0; i < k * size; ++i) copy(outs[list * k * size + i].bytes(), outs[i].bytes());
        give_back(outs);
      });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                              const c10d::AllgatherOptions& options) {
  return gather_into("all_gather_into_tensor", {output}, {input}, options);
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                              const c10d::AllgatherOptions& options) {
  return gather_into("allgather_into_tensor_coalesced", outputs, inputs, options);
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::gather_into(const char* where, const Tensors& outputs,
                                                          const Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  const Checks checks = checks_of(where);
  if (inputs.size() != outputs.size()) checks.fail("requires input/output tensor lists to have the same length");
  checks.dense(inputs);
  checks.dense(outputs);
  checks.reachable(inputs, devices_.type());
  checks.reachable(outputs, devices_.type());
  for (std::size_t i = 0; i < inputs.size(); ++i) checks.holds_all(outputs[i], inputs[i]);
  auto ins = checks.operands(inputs, Operand::kRead);
  auto outs = checks.operands(outputs, Operand::kWrite);
  return launch({OpType::_ALLGATHER_BASE, "accdp:all_gather", inputs, outputs, options.timeout, options.asyncOp},
                [ins = std::move(ins), outs = std::move(outs), size = size_](Group& group, double timeout_s,
                                                                             const Execution& way) {
                  for (std::size_t i = 0; i < ins.size(); ++i)
                    group.allgather(ins[i].bytes(), parts(outs[i], size), ins[i].type(), timeout_s, way.via);
                  give_back(outs);
                });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  const Checks checks = checks_of("allgather_coalesced");
  if (inputs.empty()) checks.fail("requires non-empty input tensor list");
  if (outputs.size() != std::size_t(size_))
    checks.fail("output lists should be equal to world size: expected " + std::to_string(size_) + ", got " +
                std::to_string(outputs.size()));
  for (const Tensors& list : outputs) {
    if (list.size() != inputs.size())
      checks.fail("invalid output size: (expected length " + std::to_string(inputs.size()) + ", got " +
                  std::to_string(list.size()) + ")");
    for (std::size_t i = 0; i < list.size(); ++i) checks.like({list[i]}, inputs[i]);
  }
  const Tensors all = flat(outputs);
  checks.dense(inputs);
  checks.dense(all);
  checks.reachable(inputs, devices_.type());
  checks.reachable(all, devices_.type());
  auto ins = checks.operands(inputs, Operand::kRead);
  auto outs = checks.operands(all, Operand::kWrite);
  return launch(
      {OpType::ALLGATHER_COALESCED, "accdp:all_gather", inputs, all, options.timeout, options.asyncOp, outputs},
      [ins = std::move(ins), outs = std::move(outs), size = size_](Group& group, double timeout_s,
                                                                   const Execution& way) {
        for (std::size_t i = 0; i < ins.size(); ++i) {
          std::vector<Bytes> blocks;
          for (int r = 0; r < size; ++r) blocks.push_back(outs[r * ins.size() + i].bytes());
          group.allgather(ins[i].bytes(), blocks, ins[i].type(), timeout_s, way.via);
        }
        give_back(outs);
      });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::gather(Lists& outputs, Tensors& inputs,
                                                     const c10d::GatherOptions& options) {
  const Checks checks = checks_of("gather");
  checks.root(options.rootRank, size_);
  checks.single(inputs, "input tensor list");
  checks.dense(inputs);
  checks.reachable(inputs, devices_.type());
  if (rank_ == options.rootRank) {
    checks.single(outputs, "output");
    if (outputs[0].size() != std::size_t(size_))
      checks.fail("Incorrect output list size " + std::to_string(outputs[0].size()) + ". Output list size should be " +
                  std::to_string(size_) + ", same as size of the process group");
    checks.like(outputs[0], inputs[0]);
    checks.dense(outputs[0]);
    checks.reachable(outputs[0], devices_.type());
  } else {
    checks.none(outputs.size(), "output");
  }
  const Tensors all = flat(outputs);
  const Operand in(inputs[0], Operand::kRead);
  auto outs = checks.operands(all, Operand::kWrite);
  return launch(
      {OpType::GATHER, "accdp:gather", inputs, all, options.timeout, options.asyncOp},
      [in, outs = std::move(outs), root = int(options.rootRank)](Group& group, double timeout_s, const Execution& way) {
        group.gather(in.bytes(), memory_of(outs), in.type(), root, timeout_s, way.via);
        give_back(outs);
      });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::gather_single(at::Tensor& output, at::Tensor& input,
                                                            const c10d::GatherOptions& options) {
  const Checks checks = checks_of("gather_single");
  checks.root(options.rootRank, size_);
  const bool is_root = rank_ == options.rootRank;
  const Tensors outputs = is_root ? Tensors{output} : Tensors();
  checks.dense({input});
  checks.dense(outputs);
  checks.reachable({input}, devices_.type());
  checks.reachable(outputs, devices_.type());
  if (is_root) checks.holds_all(output, input);
  const Operand in(input, Operand::kRead);
  auto outs = checks.operands(outputs, Operand::kWrite);
  return launch({OpType::GATHER, "accdp:gather", {input}, outputs, options.timeout, options.asyncOp},
                [in, outs = std::move(outs), size = size_, root = int(options.rootRank)](Group& group, double timeout_s,
                                                                                         const Execution& way) {
                  group.gather(in.bytes(), outs.empty() ? std::vector<Bytes>() : parts(outs[0], size), in.type(), root,
                               timeout_s, way.via);
                  give_back(outs);
                });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::scatter(Tensors& outputs, Lists& inputs,
                                                      const c10d::ScatterOptions& options) {
  const Checks checks = checks_of("scatter");
  checks.root(options.rootRank, size_);
  checks.single(outputs, "output tensor list");
  checks.dense(outputs);
  checks.reachable(outputs, devices_.type());
  if (rank_ == options.rootRank) {
    checks.single(inputs, "input");
    if (inputs[0].size() != std::size_t(size_))
      checks.fail("Incorrect input list size " + std::to_string(inputs[0].size()) + ". Input list size should be " +
                  std::to_string(size_) + ", same as size of the process group");
    checks.like(inputs[0], outputs[0]);
    checks.dense(inputs[0]);
    checks.reachable(inputs[0], devices_.type());
  } else {
    checks.none(inputs.size(), "input");
  }
  const Tensors all = flat(inputs);
  const Operand out = checks.operand(outputs[0], Operand::kWrite);
  auto ins = checks.operands(all, Operand::kRead);
  return launch(
      {OpType::SCATTER, "accdp:scatter", all, outputs, options.timeout, options.asyncOp},
      [out, ins = std::move(ins), root = int(options.rootRank)](Group& group, double timeout_s, const Execution& way) {
        group.scatter(readable_memory_of(ins), out.bytes(), out.type(), root, timeout_s, way.via);
        out.give_back();
      });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                            std::vector<int64_t>& output_splits,
                                                            std::vector<int64_t>& input_splits,
                                                            const c10d::AllToAllOptions& options) {
  const Checks checks = checks_of("all_to_all_single");
  checks.dense({output, input});
  checks.reachable({output, input}, devices_.type());
  checks.same_type({output}, input);
  for (const at::Tensor& tensor : {output, input})
    TORCH_CHECK_VALUE(tensor.is_contiguous(), "ProcessGroupAccdp::all_to_all_single: rank ", rank_, " of ", size_,
                      ": Tensors must be contiguous: the ", tensor.is_same(input) ? "input" : "output", " has shape ",
                      tensor.sizes(), " and strides ", tensor.strides(), ": expected .contiguous() of it");
  const std::int64_t sent = own_elements(checks, "input", input, input_splits);
  const std::int64_t kept = own_elements(checks, "output", output, output_splits);
  if (sent != kept) checks.fail(c10::str("the block to itself has ", sent, " elements in, ", kept, " out"));
  const Operand in(input, Operand::kRead), out = checks.operand(output, Operand::kWrite);
  return launch(
      {OpType::ALLTOALL_BASE, "accdp:all_to_all", {input}, {output}, options.timeout, options.asyncOp},
      [in, out, input_splits, output_splits, size = size_](Group& group, double timeout_s, const Execution& way) {
        group.alltoall(split_parts<ConstBytes>(in, input_splits, size), split_parts<Bytes>(out, output_splits, size),
                       in.type(), timeout_s, way.via);
        out.give_back();
      });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::alltoall(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllToAllOptions& options) {
  const Checks checks = checks_of("alltoall");
  for (const Tensors* list : {&inputs, &outputs})
    if (list->size() != std::size_t(size_))
      checks.fail("tensor lists: expected " + std::to_string(size_) + " tensors, got " + std::to_string(list->size()));
  checks.dense(inputs);
  checks.dense(outputs);
  checks.reachable(inputs, devices_.type());
  checks.reachable(outputs, devices_.type());
  checks.same_type(inputs, inputs[0]);
  checks.same_type(outputs, inputs[0]);
  if (inputs[rank_].numel() != outputs[rank_].numel())
    checks.fail(
        c10::str("the block to itself has ", inputs[rank_].numel(), " elements in, ", outputs[rank_].numel(), " out"));
  auto ins = checks.operands(inputs, Operand::kRead);
  auto outs = checks.operands(outputs, Operand::kWrite);
  return launch({OpType::ALLTOALL, "accdp:all_to_all", inputs, outputs, options.timeout, options.asyncOp},
                [ins = std::move(ins), outs = std::move(outs)](Group& group, double timeout_s, const Execution& way) {
                  group.alltoall(readable_memory_of(ins), memory_of(outs), ins[0].type(), timeout_s, way.via);
                  give_back(outs);
                });
}

}  // namespace accdp::torch_backend
