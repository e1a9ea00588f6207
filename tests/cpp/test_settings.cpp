// The settings table: environment, code, refusal of anything it does not understand.
#include <cstdlib>

#include "base/error.hpp"
#include "base/settings.hpp"
#include "check.hpp"

using namespace accdp;

const Setting& row_of(const std::string& name) {
  for (const Setting& row : setting_rows())
    if (name == row.name) return row;
  CHECK(!"known setting");
  std::abort();
}

int main() {
  setenv("ACCDP_CHUNK_BYTES", "64k", 1);
  CHECK(settings().chunk_bytes == 64 << 10);
  CHECK(std::string(source_of(row_of("ACCDP_CHUNK_BYTES"))) == "environment");
  CHECK(std::string(source_of(row_of("ACCDP_SPIN_US"))) == "default");
  CHECK(text_of(row_of("ACCDP_CHUNK_BYTES"), settings()) == "64k");

  const Settings& before = settings();  // as another thread may be reading them
  set_setting("ACCDP_SPIN_US", "12.5");
  CHECK(settings().spin_us == 12.5 && before.spin_us == Settings().spin_us);
  CHECK(std::string(source_of(row_of("ACCDP_SPIN_US"))) == "code");

  for (const char* text : {"", "4q", "-1", "1e30", "64kk", "1k", "1G", "9223372036854775807k", "k"}) {
    CHECK_THROWS(set_setting("ACCDP_CHUNK_BYTES", text), UsageError, "ACCDP_CHUNK_BYTES=");
    CHECK(settings().chunk_bytes == 64 << 10);
  }
  CHECK_THROWS(set_setting("ACCDP_RING_BYTES", "5k"), UsageError, "a power of two");
  CHECK_THROWS(set_setting("ACCDP_LIVENESS_S", "0"), UsageError, "> 0");
  CHECK_THROWS(set_setting("ACCDP_LIVENESS_S", "nan"), UsageError, "ACCDP_LIVENESS_S=nan");
  CHECK_THROWS(set_setting("ACCDP_MPI", "of course"), UsageError, "auto or on");
  CHECK_THROWS(set_setting("ACCDP_NO_SUCH", "1"), UsageError, "no such setting");

  const std::string shared = shared_settings_text();
  CHECK(shared.find("ACCDP_CHUNK_BYTES=64k;") != std::string::npos);
  CHECK(shared.find("ACCDP_SPIN_US") == std::string::npos);
}
