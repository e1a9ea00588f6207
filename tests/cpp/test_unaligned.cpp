// Chunks, streams and results may begin anywhere: each codec gives the same bytes as where they are aligned. The
// sanitizer reports every word that is read or written where none may be.
#include "codec/nvcomp_api.hpp"
#include "codec_cases.hpp"

using namespace accdp;

namespace {

constexpr double kBound = 1e-3;
constexpr std::size_t kCount = 999;  // odd, and not whole blocks

std::vector<std::byte> encoded(const CodecRow& codec, Datatype type, ConstBytes raw, std::size_t skew) {
  const Guarded in(raw, skew), out(raw.size(), skew / 2);
  const std::size_t size = codec.encode({type, kBound}, in.bytes(), out.bytes());
  const ConstBytes stored = out.bytes().first(size);
  return {stored.begin(), stored.end()};
}

std::vector<std::byte> decoded(const CodecRow& codec, Datatype type, ConstBytes stored, std::size_t bytes,
                               std::size_t skew) {
  const Guarded in(stored, skew), out(bytes, skew + 4);
  codec.decode(type, in.bytes(), out.bytes());
  return {out.bytes().begin(), out.bytes().end()};
}

}  // namespace

int main() {
  if (const char* folder = std::getenv("ACCDP_TEST_NVCOMP_DIR")) set_nvcomp_directory(folder);
  for (const CodecRow* codec : codec_rows()) {
    if (codec->stand_in || !codec->why_not().empty()) continue;
    int gained = 0;
    for (Datatype type : kAllTypes)
      for (Fill fill : kAllFills) {
        if (!codec->takes(type)) continue;
        const std::vector<std::byte> raw = filled(fill, kCount * element_bytes(type), element_bytes(type));
        const std::vector<std::byte> stored = encoded(*codec, type, raw, 0);
        for (std::size_t skew = 1; skew < 16; ++skew) CHECK(encoded(*codec, type, raw, skew) == stored);
        if (stored.empty()) continue;
        ++gained;
        const std::vector<std::byte> wanted = decoded(*codec, type, stored, raw.size(), 0);
        CHECK(codec->lossy || wanted == raw);
        for (std::size_t skew = 1; skew < 16; ++skew) CHECK(decoded(*codec, type, stored, raw.size(), skew) == wanted);
      }
    CHECK(gained > 0);
  }
}
