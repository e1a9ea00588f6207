// Codecs and what surrounds them on host memory, for tests, measurements and `accdp info`.
#include "bind/core_codecs.hpp"

#include <pybind11/stl.h>

#include <string_view>
#include <tuple>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/no_gil.hpp"
#include "bind/system_text.hpp"
#include "codec/codec.hpp"
#include "codec/crc32c.hpp"
#include "codec/delta.hpp"
#include "codec/nvcomp_api.hpp"
#include "codec/spread.hpp"

namespace py = pybind11;

namespace accdp::bind {
namespace {

py::list codec_list() {
  py::list rows;
  for (const CodecRow* row : codec_rows()) {
    py::dict entry;
    const std::string reason = why_not_here(*row);
    entry["name"] = row->name;
    entry["datatypes"] = row->datatypes;
    entry["exactness"] = row->exactness;
    entry["home"] = row->home;
    entry["lossy"] = row->lossy;
    entry["format"] = row->format;
    entry["library_major"] = reason.empty() ? row->library_major() : 0;
    entry["why_not"] = decode_system(reason);
    entry["stand_in"] = row->stand_in ? row->stand_in->name : "";
    rows.append(entry);
  }
  return rows;
}

py::bytes encode_chunk(const std::string& codec, Datatype type, const py::bytes& raw, double bound) {
  const std::string_view in = raw;
  std::string out(in.size(), '\0');
  const std::size_t size =
      codec_named(codec).encode({type, bound}, std::as_bytes(std::span(in)), std::as_writable_bytes(std::span(out)));
  return py::bytes(out.data(), size);
}
py::bytes decode_chunk(const std::string& codec, Datatype type, const py::bytes& stored, std::size_t raw_bytes) {
  const std::string_view in = stored;
  std::string out(raw_bytes, '\0');
  codec_named(codec).decode(type, std::as_bytes(std::span(in)), std::as_writable_bytes(std::span(out)));
  return py::bytes(out);
}

/// Chunk after chunk through a codec and back to where it came from: (stored bytes, seconds of encoding, of decoding).
std::tuple<std::size_t, double, double> encode_and_decode(const std::string& codec, Datatype type, std::uintptr_t ptr,
                                                          std::size_t nbytes, std::size_t chunk_bytes, double bound) {
  const CodecRow& row = codec_named(codec);
  if (const std::string reason = why_not_here(row); !reason.empty()) throw UsageError("codec=" + codec + ": " + reason);
  if (!row.takes(type) || chunk_bytes == 0 || chunk_bytes % element_bytes(type))
    throw UsageError("codec=" + codec + ": expected " + row.datatypes + ", and chunks of whole elements");
  NoGil nogil;
  const Bytes data(reinterpret_cast<std::byte*>(ptr), nbytes);
  std::vector<std::byte> room(nbytes, std::byte{1});  // touched, so that no page is new to the codec
  std::vector<std::size_t> sizes;
  const auto each = [&](const auto& step) {
    const auto began = Clock::now();
    for (std::size_t at = 0; at < nbytes; at += chunk_bytes) step(at, std::min(chunk_bytes, nbytes - at));
    return seconds_since(began);
  };
  const double encode_s = each([&](std::size_t at, std::size_t bytes) {
    sizes.push_back(row.encode({type, bound}, data.subspan(at, bytes), Bytes(room).subspan(at, bytes)));
  });
  std::size_t stored = 0;
  const double decode_s = each([&](std::size_t at, std::size_t bytes) {
    const std::size_t size = sizes[at / chunk_bytes];
    if (size > 0) row.decode(type, Bytes(room).subspan(at, size), data.subspan(at, bytes));
    stored += size > 0 ? size : bytes;
  });
  return {stored, encode_s, decode_s};
}

}  // namespace

void bind_codecs(py::module_& m) {
  m.def(
      "codecs", codec_list,
      "One dict per codec: name, datatypes, exactness, home, lossy, format, library_major, why_not (empty: it works), "
      "stand_in (of a codec that only GPUs have: what is used where a rank has its tensors elsewhere; else empty).");
  m.def(
      "codec_takes", [](const std::string& codec, Datatype type) { return codec_named(codec).takes(type); },
      py::arg("codec"), py::arg("dtype"), "Whether a codec takes that datatype.");
  m.def("encode_chunk", encode_chunk, py::arg("codec"), py::arg("dtype"), py::arg("raw"), py::arg("bound") = 0.0,
        "The encoded bytes of one chunk; empty where they would not be fewer.");
  m.def("decode_chunk", decode_chunk, py::arg("codec"), py::arg("dtype"), py::arg("stored"), py::arg("raw_bytes"),
        "The bytes that encode_chunk() was given.");
  m.def("encode_and_decode", encode_and_decode, py::arg("codec"), py::arg("dtype"), py::arg("ptr"), py::arg("nbytes"),
        py::arg("chunk_bytes"), py::arg("bound") = 0.0,
        "Host memory through a codec and back, chunk by chunk on this thread: (stored bytes, seconds of encoding, of "
        "decoding). Chunks that would not get smaller stay as they are.");
  m.def(
      "delta_encode",
      [](std::uintptr_t in, std::uintptr_t reference, std::uintptr_t out, std::size_t nbytes, Datatype type) {
        const auto bytes = [&](std::uintptr_t ptr) { return Bytes(reinterpret_cast<std::byte*>(ptr), nbytes); };
        delta_encode(type, bytes(in), bytes(reference), bytes(out));
        return delta_type(type);
      },
      py::arg("ptr"), py::arg("reference"), py::arg("out"), py::arg("nbytes"), py::arg("dtype"),
      "Differences of host memory to a reference, as streams have them; returns their datatype.");
  m.def(
      "standard_deviation",
      [](std::uintptr_t ptr, std::size_t count, Datatype type) {
        return standard_deviation(type, {reinterpret_cast<const std::byte*>(ptr), count * element_bytes(type)});
      },
      py::arg("ptr"), py::arg("count"), py::arg("dtype"), "Of the finite values.");
  m.def(
      "crc32c",
      [](std::uintptr_t ptr, std::size_t nbytes, std::uint32_t seed) {
        return crc32c({reinterpret_cast<const std::byte*>(ptr), nbytes}, seed);
      },
      py::call_guard<NoGil>(), py::arg("ptr"), py::arg("nbytes"), py::arg("seed") = 0, "CRC-32C of host memory.");
  m.def(
      "set_nvcomp_directory", [](const py::str& path) { set_nvcomp_directory(encode_system(path)); },
      py::arg("directory"), "Where nvCOMP's libraries are; to be called before a codec of nvCOMP is used.");
}

}  // namespace accdp::bind
