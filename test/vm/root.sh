#!/bin/bash
# Makes an initramfs with what the checks run: busybox, the tracer, the stand-in CUDA,
# python3, the checks and the tests of internal/unwind that ask the kernel, and the C
# library and the others that these want, all of this machine.
#   root.sh FILE
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

# put copies files to the same path, libraries prints what they link.
put() {
	local path
	for path in "$@"; do
		mkdir -p "$root$(dirname "$path")"
		cp -Lp "$path" "$root$path"
	done
}
libraries() { ldd "$@" 2>/dev/null | grep -oE '/[^ :]+\.so[^ :]*' | sort -u; }

mkdir -p "$root"/{bin,dev,proc,sys,tmp,root,etc,test}
cp "$(command -v busybox)" "$root/bin/busybox"
install -m 0755 test/vm/init "$root/init"

make --no-print-directory build >&2
go test -c -o bin/checks.test ./test/vm/checks
go test -c -o bin/unwind.test ./internal/unwind
kit=$(go run ./internal/testcuda/mkkit)
cp bin/{gpumemtrace,checks.test,unwind.test} "$root/bin"
cp -a "$kit" "$root/kit"

# Debian's own, whatever else is in the PATH.
python=/usr/bin/python3
version=$($python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
put $python
mkdir -p "$root/usr/lib"
tar -C /usr/lib -c --exclude=test --exclude=__pycache__ --exclude='config-*' --exclude=dist-packages "$version" | tar -C "$root/usr/lib" -x

put $(libraries bin/gpumemtrace "$root/bin/busybox" "$kit"/{workload,libcuda.so.1} $python /usr/lib/"$version"/lib-dynload/_ctypes.*.so | grep -v "^$kit/")

(cd "$root" && find . -print0 | cpio --null --quiet -o -H newc -R 0:0) >"$1"
