#include "bind/core_arrays.hpp"

#include <pybind11/numpy.h>

#include <cstring>

namespace py = pybind11;

namespace accdp::bind {
namespace {

std::optional<Datatype> signed_of(std::size_t bytes) {
  switch (bytes) {
    case 1: return Datatype::kI8;
    case 2: return Datatype::kI16;
    case 4: return Datatype::kI32;
    case 8: return Datatype::kI64;
  }
  return std::nullopt;
}
std::optional<Datatype> unsigned_of(std::size_t bytes) {
  switch (bytes) {
    case 1: return Datatype::kU8;
    case 2: return Datatype::kU16;
    case 4: return Datatype::kU32;
    case 8: return Datatype::kU64;
  }
  return std::nullopt;
}
std::optional<Datatype> float_of(std::size_t bytes) {
  switch (bytes) {
    case 2: return Datatype::kF16;
    case 4: return Datatype::kF32;
    case 8: return Datatype::kF64;
  }
  return std::nullopt;
}

// ---- NumPy --------------------------------------------------------------------------------------

std::optional<Datatype> datatype_of(const py::dtype& dtype) {
  const char order = dtype.byteorder();
  if (order != '=' && order != '|') return std::nullopt;
  const auto bytes = static_cast<std::size_t>(dtype.itemsize());
  switch (dtype.kind()) {
    case 'b': return Datatype::kBool;
    case 'i': return signed_of(bytes);
    case 'u': return unsigned_of(bytes);
    case 'f': return float_of(bytes);
    case 'c':
      return bytes == 8 ? std::optional(Datatype::kC64) : bytes == 16 ? std::optional(Datatype::kC128) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<PlainArray> plain_numpy(const py::array& array, bool writable) {
  if (!(array.flags() & py::array::c_style) || (writable && !array.writeable())) return std::nullopt;
  const std::optional<Datatype> type = datatype_of(array.dtype());
  if (!type) return std::nullopt;
  auto* data = static_cast<std::byte*>(const_cast<void*>(array.data()));
  return PlainArray{{data, static_cast<std::size_t>(array.nbytes())}, *type, array.ndim() ? array.shape(0) : -1};
}

// ---- torch, through DLPack's table of C functions -------------------------------------------------
// The module _core knows no torch; torch >= 2.10 has this table as an attribute of its class. Layouts as in DLPack 1.

struct DlTensor {
  void* data;
  struct {
    std::int32_t kind, number;
  } device;
  std::int32_t dimensions;
  struct {
    std::uint8_t kind, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};

struct DlExchange {
  std::uint32_t major, minor;
  void* previous;
  void* unused[3];
  int (*view)(void* object, DlTensor* out);  // without a reference; -1 with a Python error
};

constexpr std::int32_t kDlCpu = 1;
constexpr std::uint32_t kDlMajor = 1;

std::optional<Datatype> datatype_of(const DlTensor& tensor) {
  enum { kInt = 0, kUnsigned = 1, kFloat = 2, kBfloat = 4, kBool = 6 };
  if (tensor.dtype.lanes != 1) return std::nullopt;
  const std::size_t bytes = tensor.dtype.bits / 8;
  switch (tensor.dtype.kind) {
    case kInt: return signed_of(bytes);
    case kUnsigned: return unsigned_of(bytes);
    case kFloat: return float_of(bytes);
    case kBfloat: return bytes == 2 ? std::optional(Datatype::kBF16) : std::nullopt;
    case kBool: return bytes == 1 ? std::optional(Datatype::kBool) : std::nullopt;
  }
  return std::nullopt;  // complex ones may be lazy conjugates
}

/// torch's classes and how to look into a tensor. Of these classes only: what other subclasses hold need not be their
/// elements.
struct Torch {
  PyTypeObject *tensor = nullptr, *parameter = nullptr;
  decltype(DlExchange::view) view = nullptr;

  bool is_class(const PyTypeObject* type) const { return type == tensor || type == parameter; }
};

const Torch* torch_of(py::handle x) {
  static Torch known;  // guarded by the GIL
  PyTypeObject* type = Py_TYPE(x.ptr());
  if (known.is_class(type)) return &known;
  if (known.tensor || (std::strcmp(type->tp_name, "Tensor") != 0 && std::strcmp(type->tp_name, "Parameter") != 0))
    return nullptr;
  const auto modules = py::reinterpret_borrow<py::dict>(PyImport_GetModuleDict());
  if (!modules.contains("torch")) return nullptr;
  const py::object module = modules["torch"];
  const py::object tensor = py::getattr(module, "Tensor", py::none());
  const py::object parameter = py::getattr(py::getattr(module, "nn", py::none()), "Parameter", py::none());
  const py::object table = py::getattr(tensor, "__dlpack_c_exchange_api__", py::none());
  const Torch found{reinterpret_cast<PyTypeObject*>(tensor.ptr()), reinterpret_cast<PyTypeObject*>(parameter.ptr())};
  if (!found.is_class(type) || !PyCapsule_CheckExact(table.ptr())) return nullptr;
  const auto* exchange = static_cast<const DlExchange*>(PyCapsule_GetPointer(table.ptr(), "dlpack_exchange_api"));
  if (!exchange) PyErr_Clear();
  if (!exchange || exchange->major != kDlMajor || !exchange->view) return nullptr;
  Py_INCREF(tensor.ptr());
  Py_INCREF(parameter.ptr());
  known = {found.tensor, found.parameter, exchange->view};
  return &known;
}

/// Whether a tensor's address is nothing but its place in a storage without memory, as FSDP leaves them. Only those at
/// low addresses are asked: no storage is that long.
bool is_freed(py::handle x, const DlTensor& tensor, std::size_t element_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (address >= std::uintptr_t{1} << 40) return false;
  return address == x.attr("storage_offset")().cast<std::size_t>() * element_bytes;
}

std::optional<PlainArray> plain_tensor(const Torch& torch, py::handle x) {
  DlTensor tensor{};
  if (torch.view(x.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const std::optional<Datatype> type = datatype_of(tensor);
  if (!type || tensor.device.kind != kDlCpu) return std::nullopt;
  std::int64_t count = 1;
  bool contiguous = true;
  for (int i = tensor.dimensions - 1; i >= 0; --i) {
    contiguous = contiguous && (tensor.shape[i] == 1 || tensor.strides[i] == count);
    count *= tensor.shape[i];
  }
  if (count > 0 && (!contiguous || is_freed(x, tensor, element_bytes(*type)))) return std::nullopt;
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  const auto lazy = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(x.ptr(), is_neg));
  // Under a mode of torch's, of its default device for one, that is Python's: a signal handler may raise there.
  if (!lazy) throw py::error_already_set();
  if (lazy.ptr() != Py_False) return std::nullopt;  // a view that negates what it shows
  auto* data = static_cast<std::byte*>(tensor.data) + (tensor.data ? tensor.byte_offset : 0);
  return PlainArray{{data, count * element_bytes(*type)}, *type, tensor.dimensions ? tensor.shape[0] : -1};
}

}  // namespace

std::optional<PlainArray> plain_array(py::handle x, bool writable) {
  // The class itself: to subclasses, elements may mean more than numbers (masked arrays).
  if (Py_TYPE(x.ptr()) == py::detail::npy_api::get().PyArray_Type_)
    return plain_numpy(py::reinterpret_borrow<py::array>(x), writable);
  if (const Torch* torch = torch_of(x)) return plain_tensor(*torch, x);
  return std::nullopt;
}

}  // namespace accdp::bind
