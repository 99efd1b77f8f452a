#!/bin/bash
# Gets a kernel of Debian's and prints its path.
#   kernel.sh ARCH VERSION
# VERSION is 6.12, which stands for the newest of that series, or newest. The exit
# code is 3 if Debian has no such kernel.
set -euo pipefail
. "$(dirname "$0")/debian.sh"
arch=$1 version=$2

# What holds the image is named linux-image-*-unsigned, and linux-binary-* since 6.19.
series=${version//./\\.}
if [ "$version" = newest ]; then series='[0-9]+\.[0-9]+'; fi
package=$(debian_apt "$arch" apt-cache pkgnames linux- |
	grep -E "^linux-(image|binary)-$series\.[0-9].*-cloud-$arch(-unsigned)?\$" |
	awk '{ rank = /^linux-binary/ ? 3 : /-unsigned$/ ? 2 : 1; v = $0; sub(/^linux-(image|binary)-/, "", v); sub(/-unsigned$/, "", v); print v, rank, $0 }' |
	sort -k1,1V -k2,2n | awk 'END { print $3 }')
if [ -z "$package" ]; then
	echo "kernel.sh: Debian has no kernel $version for $arch" >&2
	exit 3
fi
kernel=$cache/$arch/$package.vmlinuz
if [ ! -e "$kernel" ]; then
	new=$(mktemp -d)
	trap 'rm -rf "$new"' EXIT
	(cd "$new" && debian_apt "$arch" apt-get download "$package" >&2)
	dpkg -x "$new"/*.deb "$new"
	mv "$new"/boot/vmlinuz-* "$kernel" 2>/dev/null || mv "$new"/usr/lib/modules/*/vmlinuz "$kernel"
fi
echo "$kernel"
