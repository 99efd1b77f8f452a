package tenant

import (
	"os"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A tenant is the outermost group that its machine made; what it makes below is its own.
func TestOutermost(t *testing.T) {
	pod := "/kubepods.slice/kubepods-pod" + uidUnit + ".slice"
	for path, want := range map[string]string{
		"/":                            "",
		"/system.slice/slurmd.service": "",
		"/docker/" + id:                "/docker/" + id,
		"/docker/" + id + "/docker/" + other + "/user.slice/user-7.slice": "/docker/" + id,
		pod + "/cri-containerd-" + id + ".scope":                          pod,
		pod + "/cri-containerd-" + other + ".scope/own":                   pod,
		"/slurm/uid_1000/job_4711/step_0/job_1":                           "/slurm/uid_1000/job_4711",
		"/../../pod" + uid + "/" + id:                                     "/../../pod" + uid,
		"/system.slice/gpu7_slurmstepd.scope/job_4711/step_0/user/task_0": "/system.slice/gpu7_slurmstepd.scope/job_4711",
		// Who may make groups here could make one of each name.
		"/system.slice/web.service/docker-" + id + ".scope":                "",
		"/system.slice/web.service/kubepods/pod" + uid:                     "",
		"/machine.slice/machine-one.scope/payload/slurm/uid_0/job_1":       "",
		"/lxc.payload.one/user.slice/user-7.slice/docker-" + id + ".scope": "",
		"/lxc/one/docker/" + id:                                            "",
	} {
		if group, _, isUser := outermost(path); isUser || group != want {
			t.Errorf("%s: %q, %v, want %q", path, group, isUser, want)
		}
	}
	for _, path := range []string{
		"/user.slice/user-1000.slice",
		"/../../user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid + "/" + id,
		"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container",
		"/user.slice/user-1000.slice/session-2.scope/docker-" + id + ".scope",
	} {
		if group, uid, isUser := outermost(path); !isUser || uid != 1000 {
			t.Errorf("%s: %q, %d, %v", path, group, uid, isUser)
		}
	}
}

// The unified hierarchy counts before others, and what tells nothing is passed over.
func TestNumberIn(t *testing.T) {
	groups := func(of ...string) (out []proc.Cgroup) {
		for i := 0; i < len(of); i += 2 {
			out = append(out, proc.Cgroup{Hierarchy: of[i], Path: of[i+1]})
		}
		return out
	}
	one, known := numberIn(groups("", "/docker/"+id))
	if !known || one&groupBit == 0 || Name(one) != "control group /docker/"+id {
		t.Errorf("a container is %x (%s), %v", one, Name(one), known)
	}
	for _, c := range []struct {
		groups []proc.Cgroup
		want   uint32
		known  bool
	}{
		{groups("", "/docker/"+id+"/own"), one, true},
		{groups("memory", "/user.slice/user-7.slice", "", "/docker/"+id), one, true},
		{groups("memory", "/docker/"+other, "name=systemd", "/docker/"+id, "", "/"), one, true},
		{groups("name=systemd", "/user.slice/user-7.slice/session-1.scope", "", "/"), 7, true},
		{groups("", "/system.slice/web.service", "memory", "/"), 0, false},
		{nil, 0, false},
	} {
		if n, known := numberIn(c.groups); n != c.want || known != c.known {
			t.Errorf("%v: %d, %v, want %d, %v", c.groups, n, known, c.want, c.known)
		}
	}
	if n, _ := numberIn(groups("", "/docker/"+other)); n == one {
		t.Error("two containers have one number")
	}
}

// A process counts for what its groups tell, or else for its user.
func TestNumberOf(t *testing.T) {
	groups, err := proc.Cgroups(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	want, known := numberIn(groups)
	if !known {
		if want, err = proc.User(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := NumberOf(os.Getpid()); err != nil || n != want {
		t.Errorf("%d, want %d, %v", n, want, err)
	}
}
