#!/bin/bash
# Boots kernels and runs the checks on each, as root there.
#   run.sh [-o DIR] KERNEL...
# A KERNEL is a version of Debian's (6.1), several of which the first that can be had
# is taken (6.19,6.18), "newest", or the path of a bzImage. One that cannot be had is
# skipped, by name; it is an error if none ran. DIR/KERNEL.txt is what its console said.
#
# Without KVM the processor is emulated, about twenty times slower.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
out=$(mktemp -d)
while getopts o: option; do
	case $option in
	o) out=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
limit=900 # seconds a machine

"$here/../../scripts/install-tools" qemu-system-x86_64=qemu-system-x86 busybox=busybox-static cpio=cpio \
	gcc=gcc /usr/include/stdio.h=libc6-dev /usr/bin/python3=python3
mkdir -p "$out"
initrd=$(mktemp)
trap 'rm -f "$initrd"' EXIT
"$here/root.sh" "$initrd"

# A host that shows no virtualization to its programs may have a KVM all the same,
# which then runs none but paravirtual kernels.
if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then
	machine=(-accel kvm -cpu host)
else
	machine=(-accel tcg,thread=multi -cpu max)
	echo "run.sh: no KVM here: the processor is emulated"
fi

# path prints where a kernel is.
path() {
	local version
	if [ -f "$1" ]; then
		echo "$1"
		return
	fi
	for version in ${1//,/ }; do
		"$here/kernel.sh" "$version" && return
	done
	return 3
}

# boot runs the checks on a kernel and returns their exit code, 99 if they did not
# come to their end.
boot() {
	local kernel=$1 console=$2
	timeout "$limit" qemu-system-x86_64 "${machine[@]}" -smp 2 -m 3072 -no-reboot \
		-display none -nodefaults -no-user-config -serial "file:$console" \
		-kernel "$kernel" -initrd "$initrd" \
		-append "console=ttyS0 panic=-1 quiet mitigations=off" </dev/null || true
	return "$(sed -n 's/^vm: exit code \([0-9]*\).*/\1/p' "$console" | grep . || echo 99)"
}

passed=() failed=() skipped=()
for wanted in "$@"; do
	console=$out/$(basename "$wanted").txt
	if ! kernel=$(path "$wanted"); then
		skipped+=("$wanted")
		continue
	fi
	echo "==> $wanted: $(basename "$kernel")"
	begin=$SECONDS
	code=0
	boot "$kernel" "$console" || code=$?
	tr -d '\r' <"$console" | sed -n '/^vm: Linux/,$p'
	if [ $code = 0 ]; then passed+=("$wanted"); else failed+=("$wanted"); fi
	echo "==> $wanted: exit code $code after $((SECONDS - begin)) s"
done
echo "kernels passed: ${passed[*]:-none}; failed: ${failed[*]:-none}; skipped: ${skipped[*]:-none}"
[ ${#passed[@]} -gt 0 ] && [ ${#failed[@]} = 0 ]
