#include "torch/tensors.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace accdp::torch_backend {

Datatype datatype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBool: return Datatype::kBool;
    case at::kByte: return Datatype::kU8;
    case at::kChar: return Datatype::kI8;
    case at::kUInt16: return Datatype::kU16;
    case at::kShort: return Datatype::kI16;
    case at::kUInt32: return Datatype::kU32;
    case at::kInt: return Datatype::kI32;
    case at::kUInt64: return Datatype::kU64;
    case at::kLong: return Datatype::kI64;
    case at::kHalf: return Datatype::kF16;
    case at::kBFloat16: return Datatype::kBF16;
    case at::kFloat8_e4m3fn: return Datatype::kF8E4M3;
    case at::kFloat8_e5m2: return Datatype::kF8E5M2;
    case at::kFloat: return Datatype::kF32;
    case at::kDouble: return Datatype::kF64;
    case at::kComplexFloat: return Datatype::kC64;
    case at::kComplexDouble: return Datatype::kC128;
    default: return Datatype::kBytes;
  }
}

ReduceOp reduce_op_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM: return ReduceOp::kSum;  // the factor is applied before
    case c10d::ReduceOp::AVG: return ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::kProd;
    case c10d::ReduceOp::MIN: return ReduceOp::kMin;
    case c10d::ReduceOp::MAX: return ReduceOp::kMax;
    case c10d::ReduceOp::BAND: return ReduceOp::kBand;
    case c10d::ReduceOp::BOR: return ReduceOp::kBor;
    case c10d::ReduceOp::BXOR: return ReduceOp::kBxor;
    default: TORCH_CHECK_VALUE(false, "ProcessGroupAccdp: unsupported reduction operation ", int(op.op_));
  }
}

namespace {

/// Whether no two elements share memory, by the sizes and strides: each dimension steps over all that is within it.
bool is_apart(const at::Tensor& tensor) {
  if (tensor.numel() < 2 || tensor.is_non_overlapping_and_dense()) return true;
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // stride, size
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    if (tensor.size(i) > 1) steps.emplace_back(tensor.stride(i), tensor.size(i));
  std::ranges::sort(steps);
  std::int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

}  // namespace

Operand::Operand(const at::Tensor& tensor, Use use)
    : tensor_(tensor), type_(datatype_of(tensor)), writes_(use != kRead) {
  TORCH_INTERNAL_ASSERT(!writes_ || can_be_written(tensor));
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg())
    dense_ = tensor;
  else if (use == kWrite)
    dense_ = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  else
    dense_ = tensor.resolve_conj().resolve_neg().contiguous();
  if (writes_ && !dense_.is_same(tensor)) tensor_ = tensor.detach();  // it may be given other memory, this not
  memory_ = {static_cast<std::byte*>(dense_.data_ptr()), dense_.nbytes()};
  numel_ = dense_.numel();
  rows_ = dense_.dim() ? dense_.size(0) : 1;
  is_on_host_ = dense_.is_cpu();
  if (memory_.empty() || !dense_.has_storage()) return;
  storage_ = dense_.storage();
  began_ = storage_.data();
  offset_ = dense_.storage_offset() * dense_.itemsize();
}

Bytes Operand::bytes() const {
  if (storage_ && (storage_.data() != began_ || storage_.nbytes() < offset_ + memory_.size()))
    throw std::runtime_error(
        "a tensor's memory has been freed, moved or shrunk before its operation came to its turn: expected that of " +
        std::to_string(numel_) + " elements until the work is done");
  return memory_;
}

bool Operand::can_be_written(const at::Tensor& tensor) { return tensor.is_contiguous() || is_apart(tensor); }

void Operand::give_back() const {
  if (writes_ && !dense_.is_same(tensor_)) tensor_.copy_(dense_);
}

std::vector<Bytes> memory_of(std::span<const Operand> operands) {
  std::vector<Bytes> memory;
  memory.reserve(operands.size());
  for (const Operand& operand : operands) memory.push_back(operand.bytes());
  return memory;
}

std::vector<ConstBytes> readable_memory_of(std::span<const Operand> operands) {
  std::vector<ConstBytes> memory;
  memory.reserve(operands.size());
  for (const Operand& operand : operands) memory.push_back(operand.bytes());
  return memory;
}

void give_back(std::span<const Operand> operands) {
  for (const Operand& operand : operands) operand.give_back();
}

Tensors flat(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

void Checks::fail(const std::string& text) const {
  TORCH_CHECK(false, "ProcessGroupAccdp::", where, ": rank ", rank, " of ", size, ": ", text);
}

void Checks::non_empty(at::TensorList tensors) const {
  if (tensors.empty()) fail("requires non-empty tensor list");
}

void Checks::single(at::TensorList tensors, const char* what) const {
  if (tensors.size() != 1)
    fail(std::string("requires a single-element ") + what + ", got " + std::to_string(tensors.size()) + " elements");
}

void Checks::single(const std::vector<Tensors>& lists, const char* what) const {
  if (lists.size() != 1)
    fail(c10::str("requires a single-element ", what, " list containing a list with ", size, " tensors, got ",
                  lists.size(), " lists"));
}

void Checks::none(std::size_t count, const char* what) const {
  if (count > 0) fail(std::string("requires empty ") + what + " on non-root, got " + std::to_string(count) + " lists");
}

void Checks::root(std::int64_t given, int ranks, const char* what) const {
  if (given < 0 || given >= ranks)
    fail(std::string("invalid ") + what + ": " + std::to_string(given) + ", expected 0 to " +
         std::to_string(ranks - 1));
}

void Checks::root_tensor(std::int64_t index, std::size_t count) const {
  if (index < 0 || std::size_t(index) >= count)
    fail("invalid root tensor: " + std::to_string(index) + ", expected 0 to " +
         std::to_string(std::int64_t(count) - 1));
}

void Checks::reachable(at::TensorList tensors, std::optional<c10::DeviceType> type) const {
  for (const at::Tensor& tensor : tensors)
    if (!tensor.device().is_cpu() && tensor.device().type() != type)
      fail("tensor is on " + tensor.device().str() + ", expected cpu" +
           (type ? " or " + c10::DeviceTypeName(*type, true) : ": this build moves host memory only"));
}

void Checks::single_on_device(at::TensorList tensors) const {
  if (tensors.size() > 1 && !tensors[0].device().is_cpu())
    fail("requires a single tensor per rank on " + tensors[0].device().str() + ", got " +
         std::to_string(tensors.size()));
}

void Checks::dense(at::TensorList tensors) const {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.layout() != at::kStrided)
      fail("unsupported layout: only supports dense tensors, got one of layout " + c10::str(tensor.layout()));
    if (tensor.numel() && tensor.storage().nbytes() == 0)  // as of a parameter whose elements FSDP has freed
      fail("a tensor of " + std::to_string(tensor.numel()) + " elements has no memory, expected one that holds them");
  }
}

void Checks::same_type_and_sizes(at::TensorList tensors) const {
  if (!tensors.empty()) like(tensors, tensors[0]);
}

void Checks::same_type(at::TensorList tensors, const at::Tensor& like) const {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].scalar_type() != like.scalar_type())
      fail("invalid tensor type at index " + std::to_string(i) + " (expected " + at::toString(like.scalar_type()) +
           ", got " + at::toString(tensors[i].scalar_type()) + ")");
}

void Checks::holds_all(const at::Tensor& output, const at::Tensor& input) const {
  same_type({output}, input);
  if (const auto all = input.numel() * size; output.numel() != all)
    fail("output tensor size must be equal to world_size times input tensor size (expected " + std::to_string(all) +
         " elements, got " + std::to_string(output.numel()) + ")");
}

void Checks::like(at::TensorList tensors, const at::Tensor& like) const {
  same_type(tensors, like);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (!tensors[i].sizes().equals(like.sizes()))
      fail(
          c10::str("invalid tensor size at index ", i, " (expected ", like.sizes(), ", got ", tensors[i].sizes(), ")"));
}

Operands Checks::operands(at::TensorList tensors, Operand::Use use) const {
  Operands all;
  all.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (use != Operand::kRead && !Operand::can_be_written(tensors[i]))
      fail(c10::str("the tensor at index ", i, " of those that are written to has sizes ", tensors[i].sizes(),
                    " and strides ", tensors[i].strides(), ", so that more than one element may refer to a single ",
                    "memory location: expected one that has its own for each, as of clone()"));
    all.emplace_back(tensors[i], use);
  }
  return all;
}

Operand Checks::operand(const at::Tensor& tensor, Operand::Use use) const { return operands({tensor}, use)[0]; }

}  // namespace accdp::torch_backend
