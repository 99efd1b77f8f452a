#!/bin/bash
# Gets a kernel of Debian's and prints its path.
#   kernel.sh VERSION
# VERSION is 6.12, which stands for the newest of that series, or newest. It comes
# from where Debian has it (SUITES) with apt-get, whose lists of this machine are not
# touched, and stays in ~/.cache/gpumemtrace-kernels. The exit code is 3 if Debian has
# no such kernel.
set -euo pipefail
version=$1
SUITES='bookworm trixie trixie-backports'

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpumemtrace-kernels
mkdir -p "$cache"/{lists,archives}/partial
for suite in $SUITES; do
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
done >"$cache/sources.list"
options=(-q -o Dir::Etc::SourceList="$cache/sources.list" -o Dir::Etc::SourceParts=/dev/null
	-o Dir::State::Lists="$cache/lists" -o Dir::Cache="$cache" -o Acquire::Languages=none -o Acquire::Retries=5 -o APT::Sandbox::User=root)

# As old as an hour will do: several kernels are got one after the other.
if [ -z "$(find "$cache/updated" -mmin -60 2>/dev/null)" ]; then
	# A suite that has gone is missed below, where its kernel is.
	apt-get "${options[@]}" update >&2 || true
	touch "$cache/updated"
fi

# What holds the image is named linux-image-*-unsigned, and linux-binary-* since 6.19.
series=${version//./\\.}
if [ "$version" = newest ]; then series='[0-9]+\.[0-9]+'; fi
package=$(apt-cache "${options[@]}" pkgnames linux- |
	grep -E "^linux-(image|binary)-$series\.[0-9].*-cloud-amd64(-unsigned)?\$" |
	awk '{ rank = /^linux-binary/ ? 3 : /-unsigned$/ ? 2 : 1; v = $0; sub(/^linux-(image|binary)-/, "", v); sub(/-unsigned$/, "", v); print v, rank, $0 }' |
	sort -k1,1V -k2,2n | awk 'END { print $3 }')
if [ -z "$package" ]; then
	echo "kernel.sh: Debian has no kernel $version" >&2
	exit 3
fi
kernel=$cache/$package.vmlinuz
if [ ! -e "$kernel" ]; then
	new=$(mktemp -d)
	trap 'rm -rf "$new"' EXIT
	(cd "$new" && apt-get "${options[@]}" download "$package" >&2)
	dpkg -x "$new"/*.deb "$new"
	mv "$new"/boot/vmlinuz-* "$kernel" 2>/dev/null || mv "$new"/usr/lib/modules/*/vmlinuz "$kernel"
fi
echo "$kernel"
