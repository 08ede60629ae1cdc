# What a build of hotkv needs from the system, and how to get it. Sourced by scripts.

# Where it is not there yet, `install_build_dependencies` installs it on Debian and Ubuntu, and says
# what is needed elsewhere. Extra packages can be given as arguments.
hotkv_packages=(
  cmake g++ ninja-build ccache pkg-config                          # the build
  libboost-dev libspdlog-dev libtomlplusplus-dev libcli11-dev      # libraries
  nlohmann-json3-dev libssl-dev libsystemd-dev
  libgtest-dev libgmock-dev libbenchmark-dev python3               # tests
  clang-format systemd-container spin strace                       # style, systemd, models, faults
)

# Prints those of the arguments that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    if [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      echo "$package"
    fi
  done
}

install_build_dependencies() {
  local wanted=("${hotkv_packages[@]}" "$@") missing=() as_root=()
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "This system has no apt-get; hotkv is built from what these Debian 12 packages hold:" >&2
    echo "  ${wanted[*]}" >&2
    echo "and a compiler with <expected> (GCC 12 or newer). Going on with what is here." >&2
    return 0
  fi
  mapfile -t missing < <(missing_packages "${wanted[@]}")
  if [ ${#missing[@]} -eq 0 ]; then
    return 0
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "Missing packages; as root: apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "installing: ${missing[*]}"
  # Another installation may hold the lock: wait for it. Lists are fetched only where they are stale.
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}")
  "${install[@]}" >/dev/null 2>&1 || {
    "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update -qq
    "${install[@]}" >/dev/null
  }
}
