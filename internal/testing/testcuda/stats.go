package testcuda

import (
	"encoding/json"
	"fmt"
)

// Stats is the driver's own ledger of one process. A forked child's begins
// empty.
type Stats struct {
	PID  int              `json:"pid"`
	APIs map[string]Count `json:"apis"` // those that were called
	Live map[string]Live  `json:"live"` // by event.Kind's name
	// Used is the owned memory on each device: device, array, async and vmm.
	Used []int64 `json:"used"`
	// Physical is what the kernel driver handed out on each device: what NVML
	// would say that the process uses. Of memory that another process owns it
	// knows nothing.
	Physical []int64 `json:"physical"`
}

// A Count is what the calls of one API did. Aliases count as the name whose
// address they share (cuIpcOpenMemHandle_v2, cuDevicePrimaryCtxReset_v2).
type Count struct {
	OK     uint64 `json:"ok"`
	Failed uint64 `json:"failed"`
	// Bytes allocated, mapped, reserved or imported, or ended, by calls that
	// succeeded; for pitched memory what the driver gave. A cuMemRelease or
	// cuIpcCloseMemHandle that ended nothing counts 0.
	Bytes uint64 `json:"bytes"`
	// FailedBytes were asked for by calls that failed.
	FailedBytes uint64 `json:"failed_bytes"`
}

// Live is what is live of one kind. Imported shareable handles are so from
// their first mapping on; sparse arrays with 0 bytes; what is mapped from
// external memory not at all, since its import is.
type Live struct {
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
}

// An Object is what a call of a Workload left behind.
type Object struct {
	API  string `json:"api"`
	Addr uint64 `json:"addr"` // pointer or handle
	// Extra is the physical handle under a mapping, the graph of a node, or
	// the external memory under a view.
	Extra uint64 `json:"extra"`
	Size  uint64 `json:"size"` // as asked for; of pitched memory and arrays, the width
}

// ParseStats parses a line that "stats" or Hammer printed.
func ParseStats(line string) (*Stats, error) {
	var s Stats
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		return nil, fmt.Errorf("parse stats: %w", err)
	}
	return &s, nil
}
