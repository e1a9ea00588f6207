// c10d's collectives that reduce; as those that only move data (movement.cpp), with an operation to check.
#include <algorithm>
#include <cctype>

#include "base/error.hpp"
#include "device/reduce.hpp"
#include "torch/process_group.hpp"

namespace accdp::torch_backend {
namespace {

using c10d::OpType;

/// The factor of PREMUL_SUM, applied to what this rank contributes.
at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensor;
  // The name that torch 2.11 has; later ones keep it beside the new name, PreMulSumSupplement.
  const auto* factor = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  return factor->tensor_factor.defined() ? tensor * factor->tensor_factor.to(tensor.scalar_type())
                                         : tensor * factor->double_factor;
}

/// Of complex32, which has no sums of its own, the parts, which have: float16. torch does so for allreduce.
at::Tensor in_parts(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  using Op = c10d::ReduceOp;
  const bool adds = op.op_ == Op::SUM || op.op_ == Op::AVG || op.op_ == Op::PREMUL_SUM;
  const bool has_parts = tensor.scalar_type() == at::kComplexHalf && !tensor.is_conj();
  return adds && has_parts ? at::view_as_real(tensor) : tensor;
}

/// The type of several reduce_scatters in one work: torch 2.11 has no name for them.
template <class Type>
constexpr Type several_reduce_scatters() {
  if constexpr (requires { Type::REDUCE_SCATTER_TENSOR_COALESCED; })
    return Type::REDUCE_SCATTER_TENSOR_COALESCED;
  else
    return Type::COALESCED;
}

void check_reducible(const Checks& checks, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM && at::isIntegralType(tensor.scalar_type(), true))
    checks.fail("PREMUL_SUM of dtype " + std::string(c10::toString(tensor.scalar_type())) +
                ", expected a floating point or complex one");
  const ReduceOp how = reduce_op_of(op);
  const bool bitwise = how == ReduceOp::kBand || how == ReduceOp::kBor || how == ReduceOp::kBxor;
  const std::string dtype = c10::toString(tensor.scalar_type());
  if (bitwise && !at::isIntegralType(tensor.scalar_type(), true)) {
    std::string name = name_of(how);
    for (char& letter : name) letter = static_cast<char>(std::toupper(letter));
    checks.fail("Cannot use ReduceOp." + name + " with non-integral dtype " + dtype);
  }
  if (datatype_of(tensor) == Datatype::kBytes)
    checks.fail("dtype " + dtype + " is only moved, expected one that can be reduced");
  try {
    accdp::check_reducible(datatype_of(tensor), how);
  } catch (const std::exception& error) {
    checks.fail(error.what());
  }
}

/// Which of them, dense ones, have memory in common with others of the list.
std::vector<bool> meeting(const Tensors& tensors) {
  struct Range {
    const std::byte *begin, *end;
    std::size_t number;
  };
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto* begin = static_cast<const std::byte*>(tensors[i].const_data_ptr());
    if (tensors[i].nbytes()) ranges.push_back({begin, begin + tensors[i].nbytes(), i});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<bool> meets(tensors.size(), false);
  for (std::size_t i = 1, farthest = 0; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[farthest].end) meets[ranges[i].number] = meets[ranges[farthest].number] = true;
    if (ranges[i].end > ranges[farthest].end) farthest = i;
  }
  return meets;
}

}  // namespace

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Checks checks = checks_of("allreduce");
  checks.non_empty(tensors);
  checks.reachable(tensors, devices_.type());
  checks.single_on_device(tensors);
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i].layout() != tensors[0].layout()) checks.fail("invalid tensor layout at index " + std::to_string(i));
  checks.same_type_and_sizes(tensors);
  if (tensors[0].is_sparse()) return launch_sparse(tensors, options);
  checks.dense(tensors);
  check_reducible(checks, tensors[0], options.reduceOp);
  auto outs = checks.operands(tensors, Operand::kReadWrite);
  Operands ins;
  for (const at::Tensor& tensor : tensors) ins.emplace_back(scaled(tensor, options.reduceOp), Operand::kRead);
  return launch({OpType::ALLREDUCE, "accdp:all_reduce", tensors, tensors, options.timeout, options.asyncOp},
                [outs = std::move(outs), ins = std::move(ins), op = reduce_op_of(options.reduceOp)](
                    Group& group, double timeout_s, const Execution& way) {
                  const Operand& result = outs[0];
                  if (outs.size() > 1) {  // this rank contributes all of its tensors
                    std::vector<const void*> sources;
                    for (const Operand& in : ins) sources.push_back(in.bytes().data());
                    accdp::reduce(result.bytes().data(), sources, result.numel(),
                                  Reduction{result.type(), op}.partial());
                  }
                  group.allreduce(outs.size() > 1 ? result.bytes() : ins[0].bytes(), result.bytes(), result.type(), op,
                                  timeout_s, way.via);
                  for (const Operand& other : outs) copy(other.bytes(), result.bytes());
                  give_back(outs);
                });
}

c10::intrusive_ptr<Work> ProcessGroupAccdp::allreduce_stream(at::Tensor tensor, std::vector<std::int64_t> counts,
                                                             const c10d::ReduceOp& op, const StreamCall& call,
                                                             at::Tensor residual, bool is_async, Milliseconds timeout,
                                                             std::shared_ptr<StreamReport> report) {
  const Checks checks = checks_of("allreduce_compressed");
  Tensors tensors{tensor};
  checks.dense(tensors);
  checks.reachable(tensors, devices_.type());
  check_reducible(checks, tensor, op);
  std::int64_t elements = 0;
  for (std::int64_t count : counts) elements += count;
  if (elements != tensor.numel())
    checks.fail("parts have " + std::to_string(elements) + " elements, expected " + std::to_string(tensor.numel()));
  if (residual.defined() && residual.device() != tensor.device())
    checks.fail("residual is on " + residual.device().str() + ", expected " + tensor.device().str());
  if (residual.defined() && (residual.scalar_type() != at::kFloat || residual.numel() != tensor.numel()))
    checks.fail("residual: expected float32 of " + std::to_string(tensor.numel()) + " elements");
  const StreamOptions options = call.options();
  auto memory = checks.operands(tensors, Operand::kReadWrite);
  Operands left;
  if (residual.defined()) left = checks.operands({residual}, Operand::kWrite);
  const Plan plan{OpType::ALLREDUCE, "accdp:allreduce_compressed", tensors, tensors, timeout, is_async};
  return launch_work(
      plan, place_of(plan),
      [memory = std::move(memory), left = std::move(left), counts = std::move(counts), options, how = reduce_op_of(op),
       report = std::move(report)](Group& group, double timeout_s, const Execution& way) {
        Operands all = memory;
        all.insert(all.end(), left.begin(), left.end());
        std::vector<Operand::Use> uses{Operand::kReadWrite};
        uses.resize(all.size(), Operand::kWrite);
        HostView view(way, all, uses);
        StreamOptions stream = options;
        stream.on_device = view.on_device();
        std::vector<Piece> pieces;
        Bytes rest = view[0];
        for (std::int64_t count : counts) {
          const std::size_t n = count * element_bytes(memory[0].type());
          pieces.push_back({rest.first(n), memory[0].type()});
          rest = rest.subspan(n);
        }
        std::span<float> room;
        if (!left.empty()) room = {reinterpret_cast<float*>(view[1].data()), view[1].size() / sizeof(float)};
        *report = group.allreduce_stream(std::move(pieces), how, stream, room, timeout_s);
        view.deliver();
        give_back(memory);
        give_back(left);
      });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::allreduce_sparse(Tensors& tensors,
                                                               const c10d::AllreduceOptions& options) {
  return allreduce(tensors, options);
}

namespace {

/// What ranks must know of each other's sparse tensors before their parts go round.
class SparseShapes {
 public:
  SparseShapes(int ranks, int rank, const at::Tensor& mine) : table_(at::zeros({ranks, kWidth}, at::kLong)) {
    at::Tensor row = table_[rank];
    row[kNnz] = mine._nnz();
    row[kSparse] = mine.sparse_dim();
    row[kDims] = mine.dim();
    for (std::int64_t i = 0; i < mine.dim(); ++i) row[kSizes + i] = mine.size(i);
  }
  at::Tensor& table() { return table_; }  ///< a row per rank, in host memory wherever the tensors are
  std::int64_t nnz(int rank) const { return table_[rank][kNnz].item<std::int64_t>(); }
  /// Throws, on all ranks alike, where the tensors do not fit.
  void check(const Checks& checks) const {
    for (std::int64_t rank = 1; rank < table_.size(0); ++rank)
      if (!at::equal(shape(rank), shape(0)))
        throw MismatchError(std::string(checks.where) + ": rank " + std::to_string(rank) + " has a sparse tensor of " +
                            describe(rank) + ", expected " + describe(0) + " as on rank 0");
  }

 private:
  static constexpr std::int64_t kNnz = 0, kSparse = 1, kDims = 2, kSizes = 3, kMostDims = 64,
                                kWidth = kSizes + kMostDims;
  at::Tensor shape(std::int64_t rank) const { return table_[rank].slice(0, kSparse); }
  std::string describe(std::int64_t rank) const {
    const at::Tensor row = table_[rank];
    std::string text = "sizes (";
    for (std::int64_t i = 0; i < row[kDims].item<std::int64_t>(); ++i)
      text += (i ? ", " : "") + std::to_string(row[kSizes + i].item<std::int64_t>());
    return text + ") with " + std::to_string(row[kSparse].item<std::int64_t>()) + " sparse dimensions";
  }

  at::Tensor table_;
};

}  // namespace

/// The sum of sparse tensors: everybody's indices and values are gathered and added up locally.
ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::launch_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Checks checks = checks_of("allreduce");
  if (options.reduceOp.op_ != c10d::ReduceOp::SUM)
    checks.fail("unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)");
  // On a device the result's memory must belong to the stream that the caller uses it on.
  const bool is_async = options.asyncOp && tensors[0].is_cpu();
  return launch({OpType::_ALLREDUCE_SPARSE, "accdp:sparse_all_reduce", tensors, tensors, options.timeout, is_async},
                [tensors, checks, size = size_, rank = rank_](Group& group, double timeout_s, const Execution& way) {
                  at::Tensor mine = tensors[0];
                  for (std::size_t i = 1; i < tensors.size(); ++i) mine = mine + tensors[i];
                  mine = mine.coalesce();
                  const auto sizes = mine.sizes();
                  SparseShapes shapes(size, rank, mine);
                  const Operand rows(shapes.table(), Operand::kWrite);
                  // As a type that no tensor has: another call's all_gather is a mismatch.
                  group.allgather(parts(rows, size)[rank], parts(rows, size), Datatype::kBytes, timeout_s);
                  shapes.check(checks);
                  Tensors indices, values;
                  for (int r = 0; r < size; ++r) {
                    const std::int64_t n = shapes.nnz(r);
                    auto value_sizes = mine._values().sizes().vec();
                    value_sizes[0] = n;
                    indices.push_back(at::empty({mine.sparse_dim(), n}, mine._indices().options()));
                    values.push_back(at::empty(value_sizes, mine._values().options()));
                  }
                  auto index_outs = checks.operands(indices, Operand::kWrite),
                       value_outs = checks.operands(values, Operand::kWrite);
                  const Operand index_in(mine._indices(), Operand::kRead), value_in(mine._values(), Operand::kRead);
                  group.allgather(index_in.bytes(), memory_of(index_outs), Datatype::kI64, timeout_s, way.via);
                  group.allgather(value_in.bytes(), memory_of(value_outs), value_in.type(), timeout_s, way.via);
                  const at::Tensor sum =
                      at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values, 0), sizes).coalesce();
                  for (at::Tensor tensor : tensors) tensor.copy_(sum);
                });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::allreduce_coalesced(Tensors& tensors,
                                                                  const c10d::AllreduceCoalescedOptions& options) {
  const Checks checks = checks_of("allreduce_coalesced");
  checks.non_empty(tensors);
  checks.reachable(tensors, devices_.type());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].layout() != tensors[0].layout()) checks.fail("invalid tensor layout at index " + std::to_string(i));
  checks.dense(tensors);
  for (const at::Tensor& tensor : tensors) check_reducible(checks, tensor, options.reduceOp);
  auto outs = checks.operands(tensors, Operand::kReadWrite);
  Operands ins;
  const std::vector<bool> meets = meeting(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor mine = scaled(tensors[i], options.reduceOp);
    // Memory that is listed twice contributes the same values twice, not its own result.
    ins.emplace_back(meets[i] ? mine.clone() : mine, Operand::kRead);
  }
  return launch({OpType::ALLREDUCE_COALESCED, "accdp:all_reduce", tensors, tensors, options.timeout, options.asyncOp},
                [outs = std::move(outs), ins = std::move(ins), op = reduce_op_of(options.reduceOp)](
                    Group& group, double timeout_s, const Execution& way) {
                  for (std::size_t i = 0; i < outs.size(); ++i)
                    group.allreduce(ins[i].bytes(), outs[i].bytes(), outs[i].type(), op, timeout_s, way.via);
                  give_back(outs);
                });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const Checks checks = checks_of("reduce");
  checks.root(options.rootRank, size_);
  checks.root_tensor(options.rootTensor, tensors.size());
  checks.single(tensors, "tensor list");
  checks.dense(tensors);
  checks.reachable(tensors, devices_.type());
  const at::Tensor own = in_parts(tensors[0], options.reduceOp);
  check_reducible(checks, own, options.reduceOp);
  const int root = static_cast<int>(options.rootRank);
  // Other ranks' tensors stay as they are.
  const Operand out = checks.operand(own, Operand::kReadWrite),
                in(in_parts(scaled(tensors[0], options.reduceOp), options.reduceOp), Operand::kRead);
  const bool is_root = root == rank_;
  return launch({OpType::REDUCE, "accdp:reduce", tensors, tensors, options.timeout, options.asyncOp},
                [in, out, root, is_root, op = reduce_op_of(options.reduceOp)](Group& group, double timeout_s,
                                                                              const Execution& way) {
                  group.reduce(in.bytes(), is_root ? out.bytes() : Bytes(), in.type(), op, root, timeout_s, way.via);
                  if (is_root) out.give_back();
                });
}

/// inputs: for each output what its ranks get, as one tensor per rank or as one tensor of equal parts.
ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::launch_reduce_scatter(const char* where, at::TensorList outputs,
                                                                    at::TensorList inputs,
                                                                    const c10d::ReduceScatterOptions& options) {
  const Checks checks = checks_of(where);
  checks.dense(outputs);
  checks.dense(inputs);
  checks.reachable(outputs, devices_.type());
  checks.reachable(inputs, devices_.type());
  struct One {
    Operand out;
    Operands ins;
  };
  c10::SmallVector<One, 1> all;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::size_t each = inputs.size() / outputs.size();
    const at::TensorList blocks = inputs.slice(i * each, each);
    checks.same_type(blocks, outputs[i]);
    const at::Tensor out = in_parts(outputs[i], options.reduceOp);
    check_reducible(checks, out, options.reduceOp);
    all.push_back({checks.operand(out, Operand::kWrite), {}});
    for (const at::Tensor& block : blocks)
      all.back().ins.emplace_back(in_parts(scaled(block, options.reduceOp), options.reduceOp), Operand::kRead);
  }
  // As Gloo's copy into them does: a backward that needs what was there raises, instead of taking what comes.
  for (const at::Tensor& output : outputs)
    if (!output.is_inference()) output.unsafeGetTensorImpl()->bump_version();
  const OpType type = outputs.size() > 1 ? several_reduce_scatters<OpType>() : OpType::REDUCE_SCATTER;
  return launch({type, "accdp:reduce_scatter", inputs, outputs, options.timeout, options.asyncOp},
                [all = std::move(all), size = size_, op = reduce_op_of(options.reduceOp)](
                    Group& group, double timeout_s, const Execution& way) {
                  for (const One& one : all) {
                    const bool whole = one.ins.size() == 1 && size > 1;
                    group.reduce_scatter(whole ? parts<ConstBytes>(one.ins[0], size) : readable_memory_of(one.ins),
                                         one.out.bytes(), one.out.type(), op, timeout_s, way.via);
                    one.out.give_back();
                  }
                });
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  const Checks checks = checks_of("reduce_scatter");
  checks.single(outputs, "output tensor list");
  checks.single(inputs, "input");
  if (inputs[0].size() != std::size_t(size_))
    checks.fail(c10::str("requires a single-element input list containing a list with ", size_,
                         " tensors, got one with ", inputs[0].size()));
  if (inputs[0][rank_].numel() != outputs[0].numel())
    checks.fail(c10::str("invalid tensor size at index ", rank_, " (expected ", outputs[0].sizes(), ", got ",
                         inputs[0][rank_].sizes(), ")"));
  return launch_reduce_scatter("reduce_scatter", outputs, inputs[0], options);
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                   const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_from("reduce_scatter_tensor", {output}, {input}, options);
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_from("reduce_scatter_tensor_coalesced", outputs, inputs, options);
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::reduce_scatter_from(const char* where, const Tensors& outputs,
                                                                  const Tensors& inputs,
                                                                  const c10d::ReduceScatterOptions& options) {
  const Checks checks = checks_of(where);
  if (inputs.size() != outputs.size()) checks.fail("requires input/output tensor lists to have the same length");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].numel() != outputs[i].numel() * size_)
      checks.fail("input tensor must be the same size as output size times world size (expected " +
                  std::to_string(outputs[i].numel() * size_) + " elements, got " + std::to_string(inputs[i].numel()) +
                  ")");
  return launch_reduce_scatter(where, outputs, inputs, options);
}

}  // namespace accdp::torch_backend
