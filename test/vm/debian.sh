# Sourced: Debian's packages, by apt-get with lists that are not this machine's.
#   debian_apt ARCH COMMAND... runs apt-get or apt-cache
# The newest version that a suite has is taken: with sid, of Python and the C library too.
SUITES=${SUITES:-bookworm trixie trixie-backports}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpumemtrace-kernels

debian_apt() {
	local arch=$1 command=$2 dir=$cache/$1 suite
	shift 2
	local options=(-q -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User=root
		-o Dir::State::status=/dev/null -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null
		-o Dir::State::Lists="$dir/lists" -o Dir::Cache="$dir" -o Debug::NoLocking=1
		-o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Retries=5)
	mkdir -p "$dir"/{lists,archives}/partial
	for suite in $SUITES; do
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
	done >"$dir/sources.list"
	# As old as an hour will do: what is got comes one after the other.
	if [ "$(cat "$dir/updated" 2>/dev/null)" != "$SUITES" ] || [ -z "$(find "$dir/updated" -mmin -60)" ]; then
		# What a suite that has gone had is missed where it is wanted.
		apt-get "${options[@]}" update >&2 || true
		echo "$SUITES" >"$dir/updated"
	fi
	"$command" "${options[@]}" "$@"
}
