package snapshot

import "cmp"

// A Who says who a process belongs to, and how it was started. What is not known is "".
//
// Command is what the process says of itself, and so are Service, the ranks, and a Job that no
// control group names. Whoever may make control groups makes up a Service too.
type Who struct {
	User        string `json:"user,omitempty"`         // that it runs as: a name, or a number without one
	Command     string `json:"command,omitempty"`      // its arguments with spaces between, of a long line the beginning
	Namespace   string `json:"namespace,omitempty"`    // of Kubernetes
	Pod         string `json:"pod,omitempty"`          // its name
	PodUID      string `json:"pod_uid,omitempty"`      //
	Container   string `json:"container,omitempty"`    // its name in the pod
	ContainerID string `json:"container_id,omitempty"` // 64 hexadecimal digits
	Service     string `json:"service,omitempty"`      // OTEL_SERVICE_NAME, or systemd's unit
	Job         string `json:"job,omitempty"`          // Slurm's number
	Rank        string `json:"rank,omitempty"`         // among the WorldSize processes of a distributed program
	LocalRank   string `json:"local_rank,omitempty"`   // among those on this machine
	WorldSize   string `json:"world_size,omitempty"`
}

// Fields returns every field, in an order that does not change.
func (w *Who) Fields() []*string {
	return []*string{&w.User, &w.Command, &w.Namespace, &w.Pod, &w.PodUID, &w.Container, &w.ContainerID, &w.Service, &w.Job, &w.Rank, &w.LocalRank, &w.WorldSize}
}

// maxField bounds a field of a Who, in bytes: a source's are shorter, and a file may have
// any.
const maxField = 512

// Learn returns w with what is known of other.
func (w Who) Learn(other Who) Who {
	for i, text := range other.Fields() {
		if *text != "" {
			*w.Fields()[i] = (*text)[:min(len(*text), maxField)]
		}
	}
	return w
}

// PodName returns the name of the pod, or else its uid.
func (w *Who) PodName() string { return cmp.Or(w.Pod, w.PodUID) }

// ContainerName returns the name of the container, or else the beginning of its id, as
// docker ps has it.
func (w *Who) ContainerName() string {
	return cmp.Or(w.Container, w.ContainerID[:min(len(w.ContainerID), 12)])
}

// RankName says which rank a process is, such as "rank 1 of 8", "" if it is none of several.
func (w *Who) RankName() string {
	if w.Rank == "" || w.WorldSize == "" || w.WorldSize == "1" {
		return ""
	}
	return "rank " + w.Rank + " of " + w.WorldSize
}

// Home names the pod, the container, the job or the service that a process belongs to, the
// first of them that is known.
func (w *Who) Home() string {
	switch {
	case w.Pod != "":
		return w.Namespace + "/" + w.Pod + "/" + w.Container
	case w.Job != "":
		return "job " + w.Job
	case w.PodUID != "":
		return "pod " + w.PodUID
	case w.ContainerID != "":
		return "container " + w.ContainerName()
	}
	return w.Service
}
