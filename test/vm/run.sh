#!/bin/bash
# Boots kernels and runs the checks on each, as root there.
#   run.sh [-a ARCH] [-o DIR] KERNEL...
# A KERNEL is a version of Debian's (6.1), several of which the first that can be had
# is taken (6.19,6.18), "newest", or the path of a bzImage. One that cannot be had is
# skipped, by name; it is an error if none ran. DIR/KERNEL.txt is what its console said.
# ARCH is amd64 or arm64, which is cross-built.
#
# Without KVM the processor is emulated, about thirty times slower, each machine by one
# thread of QEMU: with a thread for each of its processors, one processor runs code that
# another has just changed (jump labels, uprobes) as it was, and a program or the kernel
# ends by it, in one of 70 boots. So as many machines run side by side as there are
# processors here.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
arch=amd64 out=
while getopts a:o: option; do
	case $option in
	a) arch=$OPTARG ;;
	o) out=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
limit=900 # seconds a machine

tools=(cpio=cpio gcc=gcc /usr/include/stdio.h=libc6-dev)
case $arch in
amd64)
	tools+=(qemu-system-x86_64=qemu-system-x86)
	machine=(qemu-system-x86_64 -accel tcg,thread=single) console=ttyS0
	;;
arm64)
	tools+=(qemu-system-aarch64=qemu-system-arm aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include/stdio.h=libc6-dev-arm64-cross)
	machine=(qemu-system-aarch64 -machine virt -accel tcg,thread=single -cpu max,pauth-impdef=on) console=ttyAMA0
	limit=2400
	;;
esac
# A host that shows no virtualization to its programs may have a KVM all the same,
# which then runs none but paravirtual kernels.
if [ $arch = amd64 ] && [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then
	machine=(qemu-system-x86_64 -accel kvm -cpu host)
	emulated=
else
	emulated=$arch
	echo "run.sh: no KVM here: the processor is emulated"
fi

"$here/../../scripts/install-tools" "${tools[@]}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${out:-$work}
mkdir -p "$out"
"$here/root.sh" "$arch" "$work/initrd"

# path prints where a kernel is.
path() {
	local version
	if [ -f "$1" ]; then
		echo "$1"
		return
	fi
	for version in ${1//,/ }; do
		"$here/kernel.sh" $arch "$version" && return
	done
	return 3
}

# cpu prints what the emulated processor is for a kernel (boot.rst of Linux: where its
# version is). QEMU 7.2 leaves flags of cmpxchg16b undefined, which an interrupt then
# saves: a double fault in the allocator of Linux 6.12. From 6.19 on that does not use
# it so, but BPF's task storage wants it.
cpu() {
	local at
	at=$(od -An -tu2 -j 526 -N 2 "$1")
	case $(dd if="$1" bs=1 skip=$((at + 512)) count=32 2>/dev/null) in
	5.* | 6.?.* | 6.1[0-7].*) echo max,-cx16 ;;
	*) echo max ;;
	esac
}

# boot runs the checks on a kernel and returns their exit code, 99 if they did not
# come to their end.
boot() {
	local kernel=$1 said=$2 processor=()
	if [ "$emulated" = amd64 ]; then processor=(-cpu "$(cpu "$kernel")"); fi
	timeout "$limit" "${machine[@]}" "${processor[@]}" -smp 2 -m 3072 -no-reboot \
		-display none -nodefaults -no-user-config -serial "file:$said" \
		-kernel "$kernel" -initrd "$work/initrd" \
		-append "console=$console panic=-1 quiet mitigations=off" </dev/null || true
	return "$(sed -n 's/^vm: exit code \([0-9]*\).*/\1/p' "$said" | grep . || echo 99)"
}

# check boots a kernel, once more if it did not come to anything of ours, and says what
# came of it in $work/N.code.
check() {
	local number=$1 wanted=$2 kernel=$3 said code=0
	said=$out/$(basename "$wanted").txt
	boot "$kernel" "$said" || code=$?
	if ! grep -q '^vm: Linux' "$said"; then
		echo "==> $wanted: it did not start: once more"
		code=0
		boot "$kernel" "$said" || code=$?
	fi
	echo "==> $wanted: $(basename "$kernel")"
	tr -d '\r' <"$said" | sed -n '/^vm: Linux/,$p'
	echo "==> $wanted: exit code $code"
	echo "$code" >"$work/$number.code"
}

passed=() failed=() skipped=() kernels=()
for wanted in "$@"; do
	if kernel=$(path "$wanted"); then kernels+=("$kernel"); else kernels+=("") skipped+=("$wanted"); fi
done
for i in "${!kernels[@]}"; do
	[ "${kernels[i]}" ] || continue
	if [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; then wait -n; fi
	check "$i" "${@:i+1:1}" "${kernels[i]}" >"$work/$i.log" 2>&1 &
done
wait
for i in "${!kernels[@]}"; do
	[ "${kernels[i]}" ] || continue
	cat "$work/$i.log"
	if [ "$(cat "$work/$i.code" || echo 99)" = 0 ]; then passed+=("${@:i+1:1}"); else failed+=("${@:i+1:1}"); fi
done
echo "kernels passed: ${passed[*]:-none}; failed: ${failed[*]:-none}; skipped: ${skipped[*]:-none}"
[ ${#passed[@]} -gt 0 ] && [ ${#failed[@]} = 0 ]
