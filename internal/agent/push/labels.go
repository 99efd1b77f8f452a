package push

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A Label is one of those that distinguish series.
type Label struct{ Name, Value string }

// Names of labels.
const (
	labelService = "service_name"
	labelProcess = "process"
	labelPID     = "pid"
)

const maxValue = 256 // bytes

// SeriesLabels returns the labels of a process on a node, by name. A value is text that
// prints. Labels without a value are absent.
func SeriesLabels(node string, w *snapshot.Who, process string, pid int) []Label {
	out := []Label{
		{"container", w.Container},
		{"container_id", w.ContainerID},
		{"job", w.Job},
		{"namespace", w.Namespace},
		{"node", node},
		{labelPID, strconv.Itoa(pid)},
		{"pod", w.Pod},
		{"pod_uid", w.PodUID},
		{labelProcess, process},
		{labelService, cmp.Or(w.Service, process, "unknown")}, // a store must have one
		{"user", w.User},
	}
	for i := range out {
		out[i].Value = render.Cut(out[i].Value, maxValue)
	}
	return slices.DeleteFunc(out, func(l Label) bool { return l.Value == "" })
}
