#!/usr/bin/env bash
# fuzz.sh SECONDS: feed damaged frames and chunks to the decoders, under sanitizers, with libFuzzer if there is a clang
# that knows _Float16 (19 does, 14 does not). CLANGXX names one; ACCDP_TEST_NVCOMP_DIR nvCOMP's folder. What libFuzzer
# learns stays in build/fuzz/corpus for the next run; an input that fails is left as build/fuzz/crash-*.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=$1
[ -n "${ACCDP_TEST_NVCOMP_DIR:-}" ] || unset ACCDP_TEST_NVCOMP_DIR
clang=
for candidate in ${CLANGXX:-clang++ clang++-22 clang++-21 clang++-20 clang++-19}; do
  if echo '_Float16 half; bool has = __builtin_cpu_supports("f16c");' |
    "$candidate" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null; then
    clang=$candidate
    break
  fi
done
if [ -z "$clang" ]; then
  echo "no clang++ of version 19 or later: mutations without coverage feedback"
  cmake -G Ninja -S . -B build/sanitize -DACCDP_SANITIZE=ON --log-level=WARNING
  cmake --build build/sanitize --target fuzz_frames
  exec build/sanitize/fuzz_frames "$seconds"
fi
mkdir -p build/fuzz/corpus build/fuzz/seeds
sources=()
objects=()
for source in csrc/base/*.cpp csrc/codec/*.cpp tests/cpp/fuzz_frames.cpp; do
  case $source in */cuda_*) continue ;; esac  # these want a CUDA
  sources+=("$source")
  objects+=("build/fuzz/$(basename "$source" .cpp).o")
done
flags=(-std=c++20 -O1 -g -DACCDP_LIBFUZZER -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
  -Wno-unknown-pragmas -Icsrc -Itests/cpp)
paste -d '\n' <(printf '%s\n' "${objects[@]}") <(printf '%s\n' "${sources[@]}") |
  xargs -P "$(nproc)" -n 2 "$clang" "${flags[@]}" -c -o
"$clang" -fsanitize=fuzzer,address,undefined "${objects[@]}" -ldl -o build/fuzz/fuzz_frames
ACCDP_FUZZ_SEEDS=build/fuzz/seeds exec build/fuzz/fuzz_frames -max_total_time="$seconds" -max_len=20000 \
  -artifact_prefix=build/fuzz/ -print_final_stats=1 build/fuzz/corpus build/fuzz/seeds
