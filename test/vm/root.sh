#!/bin/bash
# Makes an initramfs with what the checks run: Debian's busybox and python3, the
# tracer, the stand-in CUDA, the checks, and the tests of internal/source/unwind that ask the
# kernel.
#   root.sh ARCH FILE
set -euo pipefail
cd "$(dirname "$0")/../.."
. test/vm/debian.sh
arch=$1 file=$2
case $arch in
amd64) compiler=x86_64-linux-gnu-gcc cgo=1 ;;
arm64) compiler=aarch64-linux-gnu-gcc cgo=0 ;; # cross-built, without NVML
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

mkdir -p "$root"/{dev,proc,sys,tmp,root,test,usr/{bin,sbin,lib,lib64}} "$work/packages/partial"
for dir in bin sbin lib lib64; do ln -s usr/$dir "$root/$dir"; done
debian_apt "$arch" apt-get -o Dir::Cache::archives="$work/packages" -qq -y --no-install-recommends --download-only \
	install busybox-static python3-minimal libpython3-stdlib >&2
for package in "$work"/packages/*.deb; do
	dpkg-deb --fsys-tarfile "$package" | tar -C "$root" -x --keep-directory-symlink --exclude=./usr/share
done
install -m 0755 test/vm/init "$root/init"

export GOARCH=$arch CGO_ENABLED=$cgo
go build -trimpath -o "$root/bin/gpumemtrace" ./cmd/gpumemtrace
go test -c -o "$root/bin/checks.test" ./test/vm/checks
go test -c -o "$root/bin/unwind.test" ./internal/source/unwind
cp -a "$(GOARCH= CGO_ENABLED= TESTCUDA_CC=$compiler go run ./internal/testing/testcuda/mkkit)" "$root/kit"

(cd "$root" && find . -print0 | cpio --null --quiet -o -H newc -R 0:0) >"$file"
