#!/usr/bin/env bash
# Tests on 64-bit Arm under Linux, emulated: `make test-arm64`. Run as root on Debian or Ubuntu.
#
#   arm64.sh FOLDER              the selection below; an hour on an idle machine
#   arm64.sh FOLDER COMMAND...   a command, in a copy of this checkout
#
# This machine compiles the kernels, for Arm, before it starts anything there; it needs the packages of the extra `build`
# in the Python named by PYTHON, and a linker for Arm.
#
# FOLDER is a Debian of its own with Python, PyTorch and what the tests need. It is made if it is missing (5 minutes,
# 2 GB); SUITE=trixie makes it with Python 3.13 in place of 3.11. PyTorch 2.10 is the oldest that pyproject.toml allows,
# and the newest whose wheel for Arm needs no CUDA. Emulated code takes 15 to 30 times as long.
set -euo pipefail
folder=${1:?"a folder for the system"}; shift
checkout=$(cd "$(dirname "$0")/../.." && pwd)
suite=${SUITE:-bookworm}
export DEBIAN_FRONTEND=noninteractive

main() {
  emulate
  [ -e "$folder/.ready" ] || make_system
  (cd "$checkout"; export PYTHONPATH=src:.
    "${PYTHON:-python3}" -m qkv.compiled.build aarch64
    "${PYTHON:-python3}" -m tests.compiled.small_kernel aarch64)
  rm -rf "$folder/qkv" && mkdir -p "$folder/qkv" "$folder/dev/shm"
  tar -C "$checkout" --exclude=./.git --exclude=./.venv --exclude=./runs --exclude=./demo --exclude=__pycache__ -cf - . \
    | tar -C "$folder/qkv" -xf -
  if [ $# -gt 0 ]; then within "$@"; else selection; fi
}

# Teach the kernel to start programs for Arm by QEMU.
emulate() {
  command -v qemu-aarch64-static debootstrap update-binfmts aarch64-linux-gnu-ld >/dev/null || {
    apt-get -qq update
    apt-get -qq install -y qemu-user-static debootstrap binfmt-support binutils-aarch64-linux-gnu >/dev/null
  }
  [ -e /proc/sys/fs/binfmt_misc/status ] || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  [ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64
}

make_system() {
  local sources=/etc/apt/sources.list mirror python packages
  mirror=$(sed -nE 's/^URIs: *([^ ]*\/debian)\/?( .*)?$/\1/p; s/^deb +(\[[^]]*\] +)?([^ ]*\/debian)\/? .*/\2/p' \
    "$sources" "$sources".d/* 2>/dev/null | sed -n 1p) || true
  rm -rf "$folder" && mkdir -p "$folder/qkv"
  debootstrap --arch=arm64 --variant=minbase --include=python3,ca-certificates,libgomp1 "$suite" "$folder" \
    ${mirror:+"$mirror"} >"$folder.log" 2>&1
  python=$(chroot "$folder" python3 -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
  packages=$folder/usr/local/lib/python$python/dist-packages
  # The versions of constraints.txt, but PyTorch's; which packages are needed is read by this machine's pip for itself.
  grep -v '^torch==\|^#' "$checkout/constraints.txt" >"$folder/constraints.txt"
  into -c "$folder/constraints.txt" numpy safetensors tokenizers sacrebleu rich typer matplotlib \
    starlette uvicorn scikit-learn scipy pytest hypothesis httpx \
    sympy networkx jinja2 fsspec filelock typing_extensions
  into --no-deps -c "$folder/constraints.txt" entmax
  into --no-deps torch==2.10.0
  # Not by PYTHONPATH, which some tests set for the processes that they start.
  echo /qkv/src >"$packages/qkv.pth"
  within python3 -c 'import platform, torch
print(platform.machine(), "Python", platform.python_version(), "PyTorch", torch.__version__)'
  touch "$folder/.ready"
}

# Install wheels for Arm by this machine's pip, which needs no emulation.
into() {
  local platforms=() n
  for n in 17 24 26 27 28 31 34; do platforms+=(--platform "manylinux_2_${n}_aarch64"); done
  "${PYTHON:-python3}" -m pip install -qq --no-warn-conflicts --target "$packages" "${platforms[@]}" \
    --platform manylinux2014_aarch64 --python-version "$python" --implementation cp --only-binary=:all: "$@"
}

# Run a command in the system, on one thread. Mounts end with the command, in a namespace of their own, so that removing
# the folder never reaches into this machine's system.
within() {
  unshare --mount bash -c '
    folder=$1; shift
    mount -t proc proc "$folder/proc"
    mount -t tmpfs tmpfs "$folder/sys"
    # oneDNN asks for the register that names an Arm processor, which the kernel of this machine lacks: Neoverse N1.
    for number in $(seq 0 $(($(nproc) - 1))); do
      named=$folder/sys/devices/system/cpu/cpu$number/regs/identification
      mkdir -p "$named" && echo 0x00000000413fd0c1 >"$named/midr_el1"
    done
    mount -t tmpfs tmpfs "$folder/dev/shm"
    exec chroot "$folder" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root LANG=C.UTF-8 OMP_NUM_THREADS=1 \
      /bin/sh -c "cd /qkv && exec \"\$@\"" sh "$@"
  ' bash "$folder" "$@"
}

# Folders as a whole, and of what has thousands of tests every so many; files that start processes, which import PyTorch
# for a minute each, are left out.
selection() {
  local failed=0
  part 1 tests/compiled/test_{available,kernels,openmp,plain,thread_pool}.py || failed=1
  part 1 tests/linalg tests/normalizers tests/masks tests/scores || failed=1
  part 4 tests/algorithms || failed=1
  part 12 tests/contract || failed=1
  within python3 -m qkv demo --steps 3 --out /tmp/demo || failed=1
  return $failed
}

# Run every nth of some tests.
part() {
  local every=$1 tests=/tests-of-this-part; shift
  within python3 -m pytest -p no:xdist -p no:cacheprovider -m "not slow" --collect-only -q "$@" \
    | awk "NF == 0 { exit } /::/ && ++count % $every == 0" >"$folder$tests" || true  # not what is printed of warnings
  within python3 -m pytest -p no:xdist -p no:cacheprovider -q --durations=10 "@$tests"
}

main "$@"
