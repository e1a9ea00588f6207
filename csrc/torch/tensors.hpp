#pragma once
#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace accdp::torch_backend {

using Tensors = std::vector<at::Tensor>;

/// Datatype for moving and, where it is numeric, reducing; kBytes for dtypes that are only moved.
Datatype datatype_of(const at::Tensor& tensor);
ReduceOp reduce_op_of(const c10d::ReduceOp& op);

/// An operation's view of a tensor: its elements in logical order, as one piece of memory. A tensor that
/// is not contiguous is copied in, and copied back by give_back() if the operation writes it. All of it as it was when
/// the operation was called: a tensor may be given other memory (`x.data = y`) before the operation's turn.
class Operand {
 public:
  enum Use { kRead, kWrite, kReadWrite };
  /// To be written to: one that can_be_written().
  Operand(const at::Tensor& tensor, Use use);
  /// Whether its elements share no memory, as those that expand() makes do.
  static bool can_be_written(const at::Tensor& tensor);

  Bytes bytes() const;  ///< throws where the memory has been freed meanwhile
  Datatype type() const { return type_; }
  std::int64_t numel() const { return numel_; }
  std::int64_t rows() const { return rows_; }  ///< along the first dimension; 1 without one
  bool is_on_host() const { return is_on_host_; }
  void give_back() const;

 private:
  at::Tensor tensor_, dense_;
  c10::Storage storage_;         // of dense_
  const void* began_ = nullptr;  // where that was
  std::size_t offset_ = 0;
  Bytes memory_;
  std::int64_t numel_, rows_;
  Datatype type_;
  bool writes_, is_on_host_;
};

/// Most operations have one tensor, or one on either side: these cost no allocation.
using Operands = c10::SmallVector<Operand, 2>;

std::vector<Bytes> memory_of(std::span<const Operand> operands);
std::vector<ConstBytes> readable_memory_of(std::span<const Operand> operands);
void give_back(std::span<const Operand> operands);

Tensors flat(const std::vector<Tensors>& lists);
/// An operand's memory as `count` equal parts, one per rank.
template <class Block = Bytes>
std::vector<Block> parts(const Operand& operand, int count) {
  const std::size_t each = operand.bytes().size() / count;
  std::vector<Block> blocks;
  blocks.reserve(count);
  for (int i = 0; i < count; ++i) blocks.push_back(operand.bytes().subspan(i * each, each));
  return blocks;
}

/// Checks of a call's arguments, made before anything is sent. `where` begins the message.
struct Checks {
  const char* where;
  int rank, size;  ///< of the caller

  [[noreturn]] void fail(const std::string& text) const;
  void non_empty(at::TensorList tensors) const;
  void single(at::TensorList tensors, const char* what) const;
  void single(const std::vector<Tensors>& lists, const char* what) const;
  void none(std::size_t count, const char* what) const;  ///< of a rank that is not root
  void root(std::int64_t given, int ranks, const char* what = "root rank") const;
  void root_tensor(std::int64_t index, std::size_t count) const;
  /// In host memory, or on devices of that type.
  void reachable(at::TensorList tensors, std::optional<c10::DeviceType> type) const;
  /// A rank that contributes several tensors has them in host memory.
  void single_on_device(at::TensorList tensors) const;
  void dense(at::TensorList tensors) const;  ///< strided layout, and memory behind it
  void same_type_and_sizes(at::TensorList tensors) const;
  void same_type(at::TensorList tensors, const at::Tensor& like) const;
  void like(at::TensorList tensors, const at::Tensor& like) const;          ///< same type and sizes as `like`
  void holds_all(const at::Tensor& output, const at::Tensor& input) const;  ///< as much as all ranks' inputs
  Operands operands(at::TensorList tensors, Operand::Use use) const;
  Operand operand(const at::Tensor& tensor, Operand::Use use) const;
};

}  // namespace accdp::torch_backend
