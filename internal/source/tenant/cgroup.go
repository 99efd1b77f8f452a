package tenant

import (
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A place is what the control groups of a process say about it.
type place struct {
	container string // 64 hexadecimal digits
	pod       string // uid, with dashes as Kubernetes writes it
	job       string // digits
	unit      string // systemd's
}

// ranked returns the hierarchies in the order in which they count: the unified one before
// systemd's own, and that before the others.
func ranked(groups []proc.Cgroup) []proc.Cgroup {
	rank := func(g proc.Cgroup) int {
		switch g.Hierarchy {
		case "":
			return 0
		case "name=systemd":
			return 1
		}
		return 2
	}
	groups = slices.Clone(groups)
	sorting.Stable(groups, func(a, b proc.Cgroup) int { return rank(a) - rank(b) })
	return groups
}

// placeOf puts together what each hierarchy says.
func placeOf(groups []proc.Cgroup) (p place) {
	for _, g := range ranked(groups) {
		q := parsePath(g.Path)
		// A container and its pod are of one path.
		if p.container == "" && p.pod == "" {
			p.container, p.pod = q.container, q.pod
		}
		if p.job == "" {
			p.job = q.job
		}
		if p.unit == "" {
			p.unit = q.unit
		}
	}
	return p
}

// parsePath reads a path from the root down, and what it meets first is what counts:
// those in a container, or in a user's own slice, name what is below. So in a
// container of a container it is the outer one, which this machine's runtime made.
func parsePath(path string) (p place) {
	slurm, user := false, false
	for part := range strings.SplitSeq(path, "/") {
		part = strings.TrimPrefix(part, "_") // systemd's mark of a name that it escaped
		if part == "" || part == "." || part == ".." {
			continue
		}
		// containerd without systemd, below a parent that systemd named: SLICE:PREFIX:ID.
		slice, rest, colon := strings.Cut(part, ":")
		if p.pod == "" && !user {
			p.pod = podUID(slice)
		}
		if colon {
			part = rest
		}
		if id := containerID(part); id != "" {
			p.container = id
			break
		}
		switch {
		case part == "user.slice":
			user = true
		case isUserManager(part):
			user, p.unit = true, ""
		case strings.HasSuffix(part, ".service"):
			if p.unit == "" {
				p.unit = part
			}
		case !user && (part == "slurm" || strings.HasPrefix(part, "slurm_") || strings.HasSuffix(part, "slurmstepd.scope")):
			slurm = true
		case !user && strings.HasPrefix(part, "uid_") && isDigits(part[4:]):
			slurm = true // below a root that this cgroup namespace does not show
		case slurm && p.job == "" && strings.HasPrefix(part, "job_") && isDigits(part[4:]):
			p.job = part[4:]
		}
	}
	if p.pod != "" {
		p.unit = "" // that of the runtime
	}
	return p
}

// isUserManager reports whether a unit is the systemd of a user, whose own units are
// below it.
func isUserManager(unit string) bool {
	return strings.HasPrefix(unit, "user@") && strings.HasSuffix(unit, ".service")
}

// podUID returns the uid of the pod that a control group is of: "pod" and the uid, or,
// of systemd, "kubepods-burstable-pod", the uid with "_" for "-", and ".slice".
func podUID(part string) string {
	if slice, ok := strings.CutSuffix(part, ".slice"); ok {
		at := strings.LastIndex(slice, "-pod")
		if at < 0 || !strings.Contains(slice[:at], "kubepods") {
			return ""
		}
		part = strings.ReplaceAll(slice[at+1:], "_", "-")
	}
	uid, ok := strings.CutPrefix(part, "pod")
	if !ok {
		return ""
	}
	// A pod that the kubelet made of a file has a hash without dashes.
	dashed := len(uid) == 36 && uid[8] == '-' && uid[13] == '-' && uid[18] == '-' && uid[23] == '-'
	if digits := strings.ReplaceAll(uid, "-", ""); len(digits) != 32 || !isHex(digits) || !dashed && len(uid) != 32 {
		return ""
	}
	return uid
}

// containerID returns the id of the container that a control group is of: the id, also
// behind its runtime's name ("docker-", "cri-containerd-", "crio-", "libpod-payload-",
// "cri-containerd:") and before ".scope". A runtime's monitor (conmon) is in no container.
func containerID(part string) string {
	part = strings.TrimSuffix(part, ".scope")
	const length = 64
	if len(part) < length {
		return ""
	}
	prefix, id := part[:len(part)-length], part[len(part)-length:]
	if !isHex(id) || strings.Contains(prefix, "conmon") {
		return ""
	}
	if prefix != "" && !strings.HasSuffix(prefix, "-") && !strings.HasSuffix(prefix, ":") {
		return ""
	}
	return id
}

func isHex(s string) bool    { return s != "" && strings.Trim(s, "0123456789abcdef") == "" }
func isDigits(s string) bool { return s != "" && len(s) <= 20 && strings.Trim(s, "0123456789") == "" }
