#!/usr/bin/env bash
# clang-tidy over every .cc file of ours, with the compile commands of build/release. .cu files are covered by
# nvcc's warnings: clang 14 cannot parse CUDA 13's headers. Files that were clean are not looked at again until
# they, a header or the rules change.
set -euo pipefail
source "$(dirname "$0")/../deploy/lib.sh"
cd "$LONGSHORE_ROOT"

headers="$(git ls-files '*.h' '*.proto' .clang-tidy | xargs cat | sha256sum)"
mkdir -p "$LONGSHORE_CACHE/tidy"
export headers LONGSHORE_CACHE
git ls-files 'engine/*.cc' 'service/*.cc' 'client/*.cc' 'tests/*.cc' |
  xargs -P "$(nproc)" -n 1 bash -c '
    stamp="$LONGSHORE_CACHE/tidy/$( (echo "$headers"; cat "$0") | sha256sum | cut -d" " -f1)"
    [ -f "$stamp" ] && exit 0
    clang-tidy-14 --quiet -p build/release --extra-arg=-Wthread-safety "$0" 2>/dev/null && touch "$stamp" || { echo "clang-tidy: $0"; exit 1; }'
