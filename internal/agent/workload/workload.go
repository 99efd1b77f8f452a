// Package workload tells who a process belongs to: the node, the pod and container,
// the service, the batch job and the user. What it says comes from the process's
// control groups, its environment and user id, and, for the names of a pod, from the
// container runtime of this machine.
//
// Nobody waits for it: Of gives what is known by then.
package workload

import (
	"iter"
	"strings"
)

// maxName bounds each name, in bytes: Kubernetes' longest have 253.
const maxName = 256

// A Workload is who a process belongs to. What is not known is "". Names are valid
// UTF-8 of at most 256 bytes, and nothing else is promised of them.
//
// Namespace, Pod, PodUID, Container and ContainerID come from the part of a control
// group's path, and from a runtime, that the processes in it cannot choose, but for a
// ContainerID in a user's own slice, which that user may make up. Service, and a Job
// that no control group tells, are what the process's environment says.
type Workload struct {
	Node        string `json:"node,omitempty"`
	Namespace   string `json:"namespace,omitempty"` // of Kubernetes
	Pod         string `json:"pod,omitempty"`
	PodUID      string `json:"pod_uid,omitempty"`
	Container   string `json:"container,omitempty"`    // its name in the pod
	ContainerID string `json:"container_id,omitempty"` // 64 hexadecimal digits
	Service     string `json:"service,omitempty"`      // OTEL_SERVICE_NAME, or systemd's unit
	Job         string `json:"job,omitempty"`          // Slurm's number
	User        string `json:"user,omitempty"`         // effective user's name on this machine, or number
}

// Fields returns the name and value of each, in order, also of what is not known. The
// names are those of labels.
func (w Workload) Fields() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, f := range []struct{ name, value string }{
			{"node", w.Node},
			{"namespace", w.Namespace},
			{"pod", w.Pod},
			{"pod_uid", w.PodUID},
			{"container", w.Container},
			{"container_id", w.ContainerID},
			{"service", w.Service},
			{"job", w.Job},
			{"user", w.User},
		} {
			if !yield(f.name, f.value) {
				return
			}
		}
	}
}

// bounded returns a name as valid UTF-8 of at most maxName bytes.
func bounded(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "")
}
