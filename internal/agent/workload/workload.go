// Package workload finds out who a process belongs to: the node, the pod and container,
// the service, the batch job and the user. What it says comes from the process's
// control groups, its environment and user id, and, for the names of a pod, from the
// container runtime of this machine.
//
// Nobody waits for it: Of gives what is known by then.
package workload

import (
	"iter"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A Workload is who a process belongs to. What is not known is "". Names are valid
// UTF-8 of at most tenant.MaxName bytes, and nothing else is promised of them.
//
// Namespace, Pod, PodUID, Container and ContainerID come from the part of a control
// group's path, and from a runtime, that the processes in it cannot choose, but for a
// ContainerID in a user's own slice, which that user may make up. Service, a Job that no
// control group names, and Command are what the process says.
type Workload struct {
	Node string
	snapshot.Who
}

// Fields returns the name and value of each but the command, in order, also of what is not
// known. The names are those of labels.
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
