package tenant

import (
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

const (
	id      = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	other   = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	uid     = "2c48913c-b29f-11e7-9350-020968147796"
	uidUnit = "2c48913c_b29f_11e7_9350_020968147796"
	static  = "4c6d2b1ac3bd19f8b58b12fbd2f3c2c5" // of a pod made of a file
)

// What runtimes, systemd, the kubelet and Slurm make.
func TestParsePath(t *testing.T) {
	for path, want := range map[string]place{
		"/":                                  {},
		"/init.scope":                        {},
		"/../..":                             {},
		"/docker/" + id:                      {container: id},
		"/docker/" + id + "/docker/" + other: {container: id},
		"/docker/" + id + "/system.slice/nginx.service":                                              {container: id},
		"/system.slice/docker-" + id + ".scope":                                                      {container: id},
		"/system.slice/containerd.service/docker/" + id:                                              {container: id, unit: "containerd.service"},
		"/../docker-" + id + ".scope":                                                                {container: id},
		"/machine.slice/libpod-" + id + ".scope/container":                                           {container: id},
		"/machine.slice/libpod-conmon-" + id + ".scope":                                              {},
		"/system.slice/web.service/libpod-payload-" + id:                                             {container: id, unit: "web.service"},
		"/libpod_parent/libpod-" + id:                                                                {container: id},
		"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container": {container: id},
		"/default/" + id: {container: id},

		"/kubepods/burstable/pod" + uid + "/" + id:                                                                             {container: id, pod: uid},
		"/kubepods/pod" + uid + "/" + id + "/sub":                                                                              {container: id, pod: uid},
		"/kubepods/besteffort/pod" + static + "/crio-" + id:                                                                    {container: id, pod: static},
		"/kubepods.slice/kubepods-pod" + uidUnit + ".slice/cri-containerd-" + id + ".scope":                                    {container: id, pod: uid},
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidUnit + ".slice/crio-" + id + ".scope/container": {container: id, pod: uid},
		"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + uidUnit + ".slice/cri-containerd-" + id + ".scope": {container: id, pod: uid},
		"/kubepods.slice/kubepods-pod" + static + ".slice/docker-" + id + ".scope":                                                                                     {container: id, pod: static},
		"/system.slice/containerd.service/kubepods-burstable-pod" + uidUnit + ".slice:cri-containerd:" + id:                                                            {container: id, pod: uid},
		"/kubepods.slice/kubepods-pod" + uidUnit + ".slice/crio-conmon-" + id + ".scope":                                                                               {pod: uid},
		// Seen from another pod's control group namespace.
		"/../../kubepods-besteffort-pod" + uidUnit + ".slice/cri-containerd-" + id + ".scope": {container: id, pod: uid},
		"/../../pod" + uid + "/" + id: {container: id, pod: uid},
		"/../" + other:                {container: other},
		// kind's node is a container, in which the kubelet runs.
		"/docker/" + other + "/kubelet/kubepods/pod" + uid + "/" + id: {container: other},

		"/slurm/uid_1000/job_4711/step_0/task_0":                           {job: "4711"},
		"/slurm_gpu7/uid_1000/job_4711/step_batch":                         {job: "4711"},
		"/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0":   {job: "4711"},
		"/system.slice/gpu7_slurmstepd.scope/job_4711/step_0/user/task_0":  {job: "4711"},
		"/../../uid_1000/job_4711/step_0":                                  {job: "4711"},
		"/system.slice/slurmstepd.scope/job_4711/step_0/user/libpod-" + id: {job: "4711", container: id},
		"/system.slice/slurmstepd.scope/system":                            {},
		"/system.slice/slurmd.service":                                     {unit: "slurmd.service"},

		"/system.slice/jupyter.service":                                      {unit: "jupyter.service"},
		"/system.slice/system-train.slice/train@7.service/worker":            {unit: "train@7.service"},
		"/system.slice/outer.service/inner.service":                          {unit: "outer.service"},
		"/system.slice/_cpu.service":                                         {unit: "cpu.service"},
		"/user.slice/user-1000.slice/session-3.scope":                        {},
		"/user.slice/user-1000.slice/user@1000.service/init.scope":           {},
		"/user.slice/user-1000.slice/user@1000.service/app.slice/nb.service": {unit: "nb.service"},
	} {
		if got := parsePath(path); got != want {
			t.Errorf("%s\n is %+v\nwant %+v", path, got, want)
		}
	}
}

// What a user or a container makes below its own control group is not believed where
// it would be somebody else's.
func TestMadeUpPath(t *testing.T) {
	for path, want := range map[string]place{
		"/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid + "/" + id:                    {container: id},
		"/user.slice/user-1000.slice/session-1.scope/slurm/uid_0/job_1":                                  {},
		"/../user@1000.service/kubepods.slice/kubepods-pod" + uidUnit + ".slice/cri-containerd-" + id:    {container: id},
		"/../user@1000.service/slurm/job_1":                                                              {},
		"/docker/" + id + "/slurm/uid_0/job_1/kubepods/pod" + uid + "/" + other:                          {container: id},
		"/kubepods/pod" + uid + "/" + id + "/kubepods/pod" + static + "/" + other + "/slurm/uid_0/job_1": {container: id, pod: uid},
		"/x/job_1":                    {},
		"/slurm/uid_1000/job_1/job_2": {job: "1"},
		"/slurm/uid_1000/job_" + strings.Repeat("9", 21): {},
		"/podpod/pod" + uid + "x/" + id + "0":            {},
		"/pod" + strings.Repeat("-", 36):                 {},
		"/a" + id:                                        {},
		"/" + strings.ToUpper(id):                        {},
		"/kubepods-pod.slice/-pod.slice/pod.slice":       {},
		"/a.slice/b-pod" + uidUnit + ".slice":            {},
	} {
		if got := parsePath(path); got != want {
			t.Errorf("%s\n is %+v\nwant %+v", path, got, want)
		}
	}
}

func TestPlaceOf(t *testing.T) {
	got := placeOf([]proc.Cgroup{
		{Hierarchy: "memory", Path: "/slurm/uid_7/job_9/step_0"},
		{Hierarchy: "pids", Path: "/docker/" + other},
		{Hierarchy: "name=systemd", Path: "/system.slice/docker-" + id + ".scope"},
		{Hierarchy: "", Path: "/system.slice/a.service"},
	})
	if want := (place{container: id, job: "9", unit: "a.service"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func FuzzParsePath(f *testing.F) {
	f.Add("/kubepods/burstable/pod" + uid + "/" + id)
	f.Add("/system.slice/containerd.service/kubepods-burstable-pod" + uidUnit + ".slice:cri-containerd:" + id)
	f.Add("/../user@1000.service/slurm/uid_1/job_1/x.service")
	f.Fuzz(func(t *testing.T, path string) {
		p := parsePath(path)
		if p.container != "" && (len(p.container) != 64 || !isHex(p.container)) ||
			p.pod != "" && !isHex(strings.ReplaceAll(p.pod, "-", "")) || len(p.pod) > 36 ||
			p.job != "" && !isDigits(p.job) ||
			!strings.Contains(path, p.unit) || strings.Contains(p.unit, "/") {
			t.Errorf("%q is %+v", path, p)
		}
		if inside := "/docker/" + id + "/" + path; parsePath(inside) != (place{container: id}) {
			t.Errorf("%q is %+v", inside, parsePath(inside))
		}
	})
}
