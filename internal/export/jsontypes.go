package export

import "time"

// The types of the JSON output beside samples. Those with the fields of a type
// in snapshot are converted from it, so that a field added there is an error
// here.

type jsonMeta struct {
	Version     string    `json:"version"`
	CommandLine string    `json:"command_line"`
	Target      string    `json:"target"`
	Driver      string    `json:"driver"`
	StackMode   string    `json:"stack_mode"`
	Start       time.Time `json:"start"`
	DurationNS  int64     `json:"duration_ns"`
	Events      uint64    `json:"events"`
}

type jsonProcess struct {
	PID            int    `json:"pid"`
	Name           string `json:"name"`
	Exited         bool   `json:"exited"`
	Inuse          int64  `json:"inuse_bytes"`
	Peak           int64  `json:"peak_bytes"`
	Allocated      int64  `json:"allocated_bytes"`
	Managed        int64  `json:"managed_bytes"`
	Host           int64  `json:"host_bytes"`
	Imported       int64  `json:"imported_bytes"`
	Graph          int64  `json:"graph_bytes"`
	LiveObjects    int64  `json:"live_objects"`
	Failed         int64  `json:"failed"`
	OutOfMemory    int64  `json:"out_of_memory"`
	UnmatchedFrees int64  `json:"unmatched_frees"`
	Async          int64  `json:"async_bytes"`
	AsyncHigh      int64  `json:"async_high_bytes"`
	Unattributed   int64  `json:"unattributed_bytes"`
	Unknown        int64  `json:"unknown_bytes"`
}

type jsonAccount struct {
	PID      int               `json:"pid"`
	Process  string            `json:"process"`
	GPU      string            `json:"gpu"`
	Total    int64             `json:"total_bytes"`
	Known    bool              `json:"known"`
	Inferred bool              `json:"inferred"`
	Lines    []jsonAccountLine `json:"lines"`
}

type jsonAccountLine struct {
	Name     string `json:"name"`
	Bytes    int64  `json:"bytes"`
	Inferred bool   `json:"inferred,omitempty"`
	Note     string `json:"note,omitempty"`
}

type jsonMapping struct {
	Start   string `json:"start"`
	Limit   string `json:"limit"`
	Offset  string `json:"offset"`
	Path    string `json:"path"`
	BuildID string `json:"build_id,omitempty"`
}

type jsonLocation struct {
	Address string     `json:"address,omitempty"`
	Mapping *int       `json:"mapping"`
	Lines   []jsonLine `json:"lines"`
}

type jsonLine struct {
	Function string `json:"function"`
	System   string `json:"system,omitempty"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

type jsonCounter struct {
	Name  string `json:"name"`
	Help  string `json:"help"`
	Value uint64 `json:"value"`
}
