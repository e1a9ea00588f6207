// Codecs on device memory by themselves, for measurements. Builds without CUDA have none of it.
#include <pybind11/stl.h>

#include "bind/core_device.hpp"
#ifdef ACCDP_WITH_CUDA
#include "gpu/lone_codec.hpp"
#endif

namespace py = pybind11;

namespace accdp::bind {

#ifdef ACCDP_WITH_CUDA
namespace {

/// Address and bytes of what is read, then of what is written; and what encoded bytes of qpk begin with.
using Chunk = std::tuple<std::uintptr_t, std::uint32_t, std::uintptr_t, std::uint32_t, double>;

std::vector<LoneCodec::Chunk> chunks_of(const std::vector<Chunk>& given) {
  std::vector<LoneCodec::Chunk> chunks;
  for (const auto& [in, in_bytes, out, out_bytes, step] : given) chunks.push_back({in, out, in_bytes, out_bytes, step});
  return chunks;
}

}  // namespace

void bind_device_codec(py::module_& m) {
  using namespace py::literals;
  py::class_<LoneCodec>(m, "DeviceCodec", "Codecs on the current CUDA device (csrc/codec/cuda_codec.hpp).")
      .def(py::init<std::size_t, std::size_t>(), "chunks"_a, "chunk_bytes"_a)
      .def_static(
          "has", [](const std::string& name, Datatype type) { return LoneCodec::has(codec_named(name).id, type); },
          "codec"_a, "dtype"_a, "Whether it can be encoded and decoded there.")
      .def_static(
          "room",
          [](const std::string& name, Datatype type, std::size_t chunk_bytes) {
            return LoneCodec::room(codec_named(name).id, type, chunk_bytes);
          },
          "codec"_a, "dtype"_a, "chunk_bytes"_a, "What encoding a chunk may write.")
      .def(
          "encode",
          [](LoneCodec& codec, const std::string& name, Datatype type, double bound, const std::vector<Chunk>& chunks,
             std::uintptr_t sizes, std::uintptr_t stream) {
            codec.encode(codec_named(name).id, {type, bound}, chunks_of(chunks), sizes, stream);
          },
          "codec"_a, "dtype"_a, "bound"_a, "chunks"_a, "sizes"_a, "stream"_a,
          "Encode up to `chunks` chunks: (in, its bytes, out, its room, 0.0) each; uint32 sizes on the device.")
      .def(
          "decode",
          [](LoneCodec& codec, const std::string& name, Datatype type, const std::vector<Chunk>& chunks,
             std::uintptr_t damaged,
             std::uintptr_t stream) { codec.decode(codec_named(name).id, type, chunks_of(chunks), damaged, stream); },
          "codec"_a, "dtype"_a, "chunks"_a, "damaged"_a, "stream"_a,
          "The way back: (in, its bytes, out, its bytes, step) each; the uint32 at `damaged` becomes 1 if one is "
          "none.");
}
#else
void bind_device_codec(py::module_&) {}
#endif

}  // namespace accdp::bind
