#!/usr/bin/env bash
# fuzz.sh SECONDS: feed damaged frames and chunks to the decoders, under sanitizers, with libFuzzer if there is clang.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=$1
clang=${CLANGXX:-$(command -v clang++ || true)}
[ -n "${ACCDP_TEST_NVCOMP_DIR:-}" ] || unset ACCDP_TEST_NVCOMP_DIR
mkdir -p build/fuzz/corpus
if [ -n "$clang" ]; then
  "$clang" -std=c++20 -O1 -g -DACCDP_LIBFUZZER -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
    -Icsrc -Itests/cpp csrc/base/*.cpp csrc/codec/*.cpp tests/cpp/fuzz_frames.cpp -ldl -o build/fuzz/fuzz_frames
  exec build/fuzz/fuzz_frames -max_total_time="$seconds" -max_len=20000 -print_final_stats=1 build/fuzz/corpus
fi
echo "no clang++: mutations without coverage feedback"
cmake -G Ninja -S . -B build/sanitize -DACCDP_SANITIZE=ON --log-level=WARNING
cmake --build build/sanitize --target fuzz_frames
exec build/sanitize/fuzz_frames "$seconds"
