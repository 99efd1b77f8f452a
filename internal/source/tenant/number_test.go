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

// A process without a group of its own counts as its user's.
func TestNumberOf(t *testing.T) {
	groups, err := proc.Cgroups(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	n, err := NumberOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if group, _, isUser := outermost(g.Path); group != "" || isUser {
			return // TestOutermost has these
		}
	}
	if want, err := proc.User(os.Getpid()); err != nil || n != want {
		t.Errorf("%d, want %d, %v", n, want, err)
	}
}
