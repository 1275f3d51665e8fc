#!/usr/bin/env bash
# Installs what is missing, builds everything, runs every test. The one command behind CI.
#
#   tests/run.sh            everything
#   tests/run.sh --quick    without clang-tidy (10 minutes on 2 cores the first time) and the tests on the real model
set -euo pipefail
source "$(dirname "$0")/../deploy/lib.sh"
cd "$LONGSHORE_ROOT"

QUICK=
case "${1:-}" in
  "") ;;
  --quick) QUICK=1 ;;
  *) sed -n '2,5p' "$0"; exit 2 ;;
esac

install_packages "${BUILD_PACKAGES[@]}" "${PYTHON_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
mkdir -p "$LONGSHORE_CACHE"

say "Format"
git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run -Werror

if command -v nvcc >/dev/null; then
  say "Build, CUDA code included"
  build release -DLONGSHORE_CLIENT=ON -DLONGSHORE_CUDA=ON -DLONGSHORE_TESTS=ON -DLONGSHORE_BENCH=ON
else
  say "Build"
  echo "SKIPPED: CUDA code is not compiled, there is no nvcc on this machine."
  build release -DLONGSHORE_CLIENT=ON -DLONGSHORE_CUDA=OFF -DLONGSHORE_TESTS=ON -DLONGSHORE_BENCH=ON
fi
make_venv "[test]"
get_model
get_document
get_prometheus
(install_packages "${BROWSER_PACKAGES[@]}") ||
  echo "SKIPPED: the status page in a browser, ${BROWSER_PACKAGES[0]} cannot be installed."

say "C++ tests"
ctest --test-dir build/release --output-on-failure -j "$(nproc)"
if [ ! -e /dev/nvidia0 ]; then
  echo "SKIPPED: GPU tests (label gpu), there is no GPU on this machine."
fi

say "Python tests"
export LONGSHORED="$LONGSHORE_ROOT/build/release/service/longshored"
export LONGSHORE_MODEL="$MODEL" LONGSHORE_DOCUMENT="$DOCUMENT" LONGSHORE_PROMETHEUS="$PROMETHEUS"
"$VENV/bin/python" -m pytest -q client/python/tests
"$VENV/bin/python" -m pytest -q tests/bench
"$VENV/bin/python" -m pytest -q tests/client

if [ -z "$QUICK" ]; then
  say "End to end, on a real model"
  "$VENV/bin/python" -m pytest -q -x --durations=5 tests/e2e
  say "clang-tidy"
  tests/tidy.py
fi
say "All tests passed"
