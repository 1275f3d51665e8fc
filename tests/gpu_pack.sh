#!/usr/bin/env bash
# Builds the GPU's tests and benchmarks and packs them, with the libraries that they need, into .gpu/, to be carried to a
# machine that has a GPU and nothing else. There: tests/gpu.sh
#
#   tests/gpu_pack.sh [ARCHITECTURES]     90a where nothing is said
set -euo pipefail
cd "$(dirname "$0")/.."

programs=(tests/conformance_test tests/engine_test tests/cuda_decode_bench tests/cuda_prefill_bench tests/cuda_token_bench
  service/longshored client/cpp/longshorectl)

cmake --preset cuda "-DCMAKE_CUDA_ARCHITECTURES=${1:-90a}" -DLONGSHORE_CLIENT=ON -DLONGSHORE_TESTS=ON \
  -DLONGSHORE_BENCH=ON >/dev/null
cmake --build build/cuda --target "${programs[@]##*/}"

rm -rf .gpu
mkdir -p .gpu/bin .gpu/lib
for program in "${programs[@]}"; do
  strip -o ".gpu/bin/${program##*/}" "build/cuda/$program"
done
# All libraries but glibc's own, which belong to the machine.
ldd .gpu/bin/* | awk '/=> \// {print $3}' | sort -u | grep -Ev '/(libc|libm|libpthread|libdl|librt)\.so' |
  xargs -I{} cp -L {} .gpu/lib/
# One file travels, and is small.
tar -C .gpu -czf .gpu/programs.tar.gz bin lib
rm -r .gpu/bin .gpu/lib
du -h .gpu/programs.tar.gz
