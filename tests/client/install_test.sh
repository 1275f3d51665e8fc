#!/usr/bin/env bash
# Installs the client library into a directory of its own, builds the example against it outside of this tree, and
# runs it against a daemon.
#
#   install_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build="$1" source="$2"
work="$(mktemp -d)"
daemon=
finish() {
  local code=$?
  [ "$code" = 0 ] || tail -n 30 "$work"/{configure.log,build.log,daemon.log,out,err} >&2 2>/dev/null || true
  [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null && wait "$daemon" || true; }
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT

cmake --install "$build" --component longshore_client --prefix "$work/prefix" >"$work/install.log"
# What a user includes names nothing that is not installed.
if grep -rhE '#include "' "$work/prefix/include" | grep -v '"longshore/client/'; then
  echo "an installed header includes what is not installed" >&2
  exit 1
fi
cp -r "$source/client/cpp/example" "$work/example"
cmake -S "$work/example" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_FLAGS="-Wall -Wextra -Wpedantic -Werror" >"$work/configure.log" 2>&1
cmake --build "$work/build" >"$work/build.log" 2>&1

"$build/service/longshored" --listen="unix:$work/d.sock" --pool-bytes=256MiB --threads=1 --metrics-listen= \
  2>"$work/daemon.log" &
daemon=$!
for _ in $(seq 100); do
  grep -q '\] ready, instance' "$work/daemon.log" && break
  sleep 0.1
done
"$work/build/example" "unix:$work/d.sock" >"$work/out"
grep -q '^refused: POSITION_CONFLICT, expected position 3003$' "$work/out"
grep -q '^prefill of 3000 tokens: 1536000 values of attention$' "$work/out"
[ "$(grep -c '^token 300[0-2]: log-sum-exp' "$work/out")" = 3 ]
grep -q 'closed' "$work/daemon.log"
# Without a daemon it says so, and how to start one.
if "$work/build/example" "unix:$work/none.sock" 2>"$work/err"; then
  exit 1
fi
grep -q 'start one: longshored' "$work/err"
