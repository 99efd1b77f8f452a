package loss

import (
	"maps"
	"slices"
	"strings"
)

// A layer is a part of the tracer that loses something.
type layer struct {
	name  string // label of metrics: "stacks"
	items string // what it loses, in the plural
}

var layers = []layer{
	{"calls", "calls, processes or libraries"},
	{"stacks", "call stacks"},
	{"names", "names of functions"},
	{"driver", "allocations or frees"},
	{"physical", "allocations or frees of the kernel driver"},
	{"tensor", "tensors"},
	{"heap", "objects of Python heaps"},
	{"recording", "records"},
	{"output", "details of the output"},
	{"agent", "messages or readings of the agent"},
}

// A Class is a sort of loss. Outputs show counters of one layer and class as one line.
type Class struct {
	Name   string
	help   string // clause after what a layer loses
	Action string // what a user can do, "" for nothing
}

// Classes are the sorts of loss.
var Classes = []Class{
	{"full", "left out or counted together because a table was full", "Trace fewer processes (`-p`), or for a shorter time. A note names the process that has most."},
	{"beyond", "beyond the limit of live allocations", "Raise `--max-live`. A note names the process that has most."},
	{"unseen", "not seen, or seen in part", "Nothing, if there are only a few. If there are many, attach before the program begins."},
	{"invalid", "that cannot have happened", "Report it, with a recording if you can."},
	{"late", "that came late, were sent again or were put off", ""},
	{"unread", "that could not be read", ""},
	{"absent", "that their files do not have", ""},
	{"rough", "that were cut, merged or decided by a rule", ""},
}

// single are the counters that outputs show by themselves: each has something that a user
// can do.
var single = []struct{ layer, name, action string }{
	{"calls", "events_ring_full", "Trace less (`-p` instead of `-a`, no `--tensors`), or keep a processor free for the tracer."},
	{"calls", "calls_no_thread_state", "Make sure that the machine has free memory."},
	{"calls", "targets_full", "Trace without children (`--no-follow`), or fewer processes (`-p`)."},
	{"calls", "processes_not_traced", "Trace fewer processes (`-p`)."},
	{"calls", "libraries_not_probed", "`/readyz` says whose libraries these are. Check that the library's file system answers, or trace fewer processes (`-p`). gpumemtrace tries again every ten seconds."},
	{"calls", "probes_gone", "Remove the debugger's breakpoints from CUDA's functions, and begin a new trace."},
	{"calls", "libraries_evicted", "End the program that maps so many copies: the warning names one of its processes, and `/readyz` its user or control group."},
	{"calls", "libraries_probed_late", "If those calls matter, begin the trace after the program has loaded its libraries."},

	{"stacks", "stacks_shed", "Raise `--memory-limit` or `--cpu-limit`, or trace less."},
	{"stacks", "stacks_incomplete", "If the code at their end is yours, build it with `-fasynchronous-unwind-tables`."},
	{"stacks", "stacks_shut_out", "End the program that a note names."},
	{"stacks", "stacks_dropped", "Trace fewer processes, or for a shorter time."},
	{"stacks", "unwind_cache_failed", "Check that there is room for the cache, and that it belongs to root and nobody else may write to it; or use `--no-cache`."},

	{"names", "pythons_unknown", "Use CPython 3.6 to 3.14. Native frames are shown all the same."},
	{"names", "unnamed_maps_denied", "Run as root, or with `CAP_SYS_PTRACE`."},
	{"names", "unnamed_anonymous", "Have the just-in-time compiler write `/tmp/perf-PID.map`, if it can."},
	{"names", "unnamed_file_gone", "Restart the program after an update that replaces the file, and trace it then."},
	{"names", "unnamed_file_slow", "Check that the file system answers, and look again later."},
	{"names", "unnamed_malformed", "Check that the file is complete."},
	{"names", "unnamed_stripped", "Install the debug symbols, or set `DEBUGINFOD_URLS` to a server that has them."},
	{"names", "symbolize_debuginfod_failed", "Check whether the servers in `DEBUGINFOD_URLS` answer."},

	{"physical", "driver_total_differs", "Look at the account (`report FILE --by cause`), and report the difference with a recording."},
	{"physical", "driver_readings_late", "Check whether `nvidia-smi` answers."},
	{"physical", "driver_shares_unknown", "Trace the owner too (`-a`). Compare the account with the driver's figure."},

	{"tensor", "steps_stacks_late", "Keep a processor free for the tracer."},

	{"recording", "records_not_recorded", "Free disk space, or record to a faster disk. `--record-max` bounds the file."},
	{"recording", "keyframes_too_large", "Raise `--record-max`."},
	{"recording", "recording_cut_short", "Nothing, if the tracer was killed or is still running. Otherwise, check whether the disk was full."},
	{"recording", "recording_damaged", "Copy the file again. The parts that are not damaged are shown."},
	{"recording", "recordings_not_begun", "Check that there is room in the agent's `--record` directory."},
	{"recording", "oom_reports_suppressed", "Raise `--oom-max`. Failures that come close together are alike."},
	{"recording", "oom_reports_not_written", "Check that there is room in `--oom-dir`, and that gpumemtrace may write to it."},

	{"output", "timeline_steps_thinned", "Use `report --steps`, with `--to` to see the steps up to a moment."},
	{"output", "timeline_places_full", "Look at that moment with `convert --at` and PyTorch's memory viewer."},

	{"agent", "reloads_refused", "The log says what is wrong with the file."},
	{"agent", "http_requests_refused", "Send fewer requests; `Retry-After` says how long to wait."},
	{"agent", "http_oom_reports_dropped", "Keep them on disk (`--oom-dir`)."},
	{"agent", "alert_subjects_full", "Use a rule about GPUs instead of processes."},
	{"agent", "alerts_dropped", "Check whether the webhook answers."},
	{"agent", "alerts_undelivered", "Check whether the webhook answers and accepts the messages."},
	{"agent", "push_queue_full", "Check whether the store answers. Raise `--push-queue-max`."},
	{"agent", "push_refused", "The log has the answer of the store, for example about credentials."},
	{"agent", "push_gave_up", "Check whether the store answers."},
	{"agent", "workloads_unnamed", "Give the agent the container runtime's socket."},
}

// classed are the other counters, by layer and class.
var classed = []struct{ layer, class, names string }{
	{"calls", "full", "processes_unknown"},
	{"calls", "unseen", "calls_on_signal_stack calls_without_entry runs_missed processes_unseen"},
	{"calls", "invalid", "calls_nested_too_deep records_malformed"},
	{"calls", "late", "mappings_lost functions_not_compared"},
	{"calls", "unread", "arguments_unreadable owners_not_read"},
	{"calls", "rough", "calls_nested lists_truncated"},

	{"stacks", "unseen", "unwinder_runs_missed"},
	{"stacks", "invalid", "stack_memo_mismatches"},
	{"stacks", "late", "stacks_ring_full stacks_not_sent stacks_not_named analyses_put_off"},
	{"stacks", "unread", "stacks_copy_failed stacks_failed unwind_cache_replaced"},
	{"stacks", "rough", "stacks_unknown_process stacks_not_copied stacks_fallback stacks_truncated stacks_shortened"},

	{"names", "full", "unnamed_file_closed symbolize_files_closed"},
	{"names", "late", "symbolize_stale_maps"},
	{"names", "unread", "python_frames_unnamed unnamed_process_gone unnamed_no_mapping unnamed_file_irregular unnamed_not_elf unnamed_too_large unnamed_outside_segments symbolize_debug_too_large symbolize_debug_malformed"},
	{"names", "absent", "unnamed_no_symbol"},

	{"driver", "full", "sites_full processes_full processes_dropped mappings_full"},
	{"driver", "beyond", "allocations_unattributed allocations_unknown ended_rows_dropped"},
	{"driver", "unseen", "allocations_replaced context_owner_unknown captures_unmatched handles_unmatched unmaps_unmatched releases_excess resets_unknown"},
	{"driver", "invalid", "events_invalid"},
	{"driver", "late", "frees_stale events_forgotten events_late"},
	{"driver", "unread", "allocations_without_address"},
	{"driver", "rough", "sites_folded devices_full contexts_full pools_full graphs_full graph_memory_kept allocations_during_capture unmaps_partial groups_folded"},

	{"physical", "full", "driver_objects_full driver_callers_full"},
	{"physical", "invalid", "driver_calls_invalid"},
	{"physical", "rough", "driver_gpus_full"},
	{"physical", "rough", "driver_parked_full"},

	{"heap", "full", "heap_modules_limit heap_objects_limit heap_storages_dropped"},
	{"heap", "late", "heap_lists_cut heap_objects_gone"},
	{"heap", "unread", "heap_objects_unread"},
	{"heap", "rough", "heap_allocator_changed heap_allocator_off heap_containers_cut heap_containers_forged heap_tensors_unfit"},

	{"tensor", "full", "tensor_callers_full steps_processes_full steps_growth_full window_processes_full window_stacks_full tensor_freed_by_full"},
	{"tensor", "beyond", "tensor_live_full window_live_full"},
	{"tensor", "unseen", "tensor_overlapping tensor_outlived tensor_totals_differ tensor_private_pool_begin_unseen window_totals_differ"},
	{"tensor", "late", "tensor_after_exit"},
	{"tensor", "rough", "tensor_parts_full tensor_fates_full tensor_private_pool_end_unseen tensor_private_pools_full"},

	{"recording", "invalid", "records_unfit"},
	{"recording", "unread", "recorded_places_missing recorded_stacks_shortened"},
	{"recording", "rough", "recorded_texts_cut"},

	{"output", "rough", "timeline_sites_full timeline_frames_full timeline_marks_full"},

	{"agent", "unseen", "alert_failures_missed push_unsent"},
	{"agent", "invalid", "push_too_large push_not_built"},
	{"agent", "late", "alert_posts_failed push_retries"},
	{"agent", "rough", "http_history_owners_full"},
	{"agent", "rough", "http_history_processes_full"},
}

// A Place says where outputs show a counter.
type Place struct {
	Layer string
	Class string // of Classes, or the name of a counter that is shown by itself
	// Action is what a user can do, "" for nothing.
	Action string
	own    bool // shown by itself
}

var places = func() map[string]Place {
	out := map[string]Place{}
	for _, s := range single {
		out[s.name] = Place{s.layer, s.name, s.action, true}
	}
	for _, c := range classed {
		for name := range strings.FieldsSeq(c.names) {
			out[name] = Place{Layer: c.layer, Class: c.class, Action: classOf(c.class).Action}
		}
	}
	return out
}()

// PlaceOf returns where a counter is shown. The ledgers of the physical layer and of tensors
// have the counters of the driver's, after "driver_" and "tensor_". A counter of another
// version of this program may not be known: it is shown by itself.
func PlaceOf(name string) (p Place, known bool) {
	if p, known = places[name]; known {
		return p, true
	}
	for prefix, layer := range map[string]string{"driver_": "physical", "tensor_": "tensor"} {
		if of, ok := strings.CutPrefix(name, prefix); ok {
			if p, known = places[of]; known && p.Layer == "driver" {
				p.Layer = layer
				return p, true
			}
		}
	}
	return Place{Layer: "other", Class: name, own: true}, false
}

func classOf(name string) Class {
	for _, c := range Classes {
		if c.Name == name {
			return c
		}
	}
	panic("no class " + name)
}

// Shown returns what outputs show of counters, in order: some by themselves, with what a
// user can do, and the sums of the others by layer and class.
func Shown(all []Counter) []Counter {
	out := make([]Counter, 0, len(all))
	at := map[string]int{}
	for _, c := range all {
		p, _ := PlaceOf(c.Name)
		if !p.own {
			c.Name = p.Layer + "_" + p.Class
			if i, ok := at[c.Name]; ok {
				out[i].Value += c.Value
				continue
			}
			at[c.Name] = len(out)
			c.Help = items(p.Layer) + " " + classOf(p.Class).help
		}
		action := ". " + strings.TrimSuffix(strings.ReplaceAll(p.Action, "`", ""), ".")
		if p.Action != "" && !strings.HasSuffix(c.Help, action) { // a live view has shown it once
			c.Help += action
		}
		out = append(out, c)
	}
	return out
}

// Telling returns the counters but for those of names and stacks that nobody can do anything about: no
// figure depends on them.
func Telling(all []Counter) []Counter {
	return slices.DeleteFunc(slices.Clone(all), func(c Counter) bool {
		p, known := PlaceOf(c.Name)
		return known && p.Action == "" && (p.Layer == "names" || p.Layer == "stacks")
	})
}

func items(name string) string {
	for _, l := range layers {
		if l.name == name {
			return l.items
		}
	}
	panic("no layer " + name)
}

// Names returns the counters that have a place.
func Names() []string { return slices.Sorted(maps.Keys(places)) }
