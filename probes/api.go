package probes

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/work"
)

type (
	// An Event is one call, or one step in a process's life. Entries[e.API] is its function.
	Event = event.Event
	// A Process is a PID, and when the process began.
	Process = event.Process
	// An Op is what an event does.
	Op = event.Op
	// A Kind is a sort of memory. String names it.
	Kind = event.Kind
	// A Class has kinds whose bytes may be added up. String names it.
	Class = event.Class
	// A Space is a set of names in which an address is unique.
	Space = event.Space
	// A Counter says how often something was lost.
	Counter = loss.Counter
	// A Mapping is an executable mapping of a process.
	Mapping = proc.Mapping
	// A FileID identifies a file.
	FileID = proc.FileID
	// A Meter measures processor time.
	Meter = work.Meter
)

// What an Event has in Op. The package internal/model/event says what the other fields then hold.
const (
	OpNone              = event.OpNone
	OpAlloc             = event.OpAlloc
	OpFree              = event.OpFree
	OpOpen              = event.OpOpen
	OpHandleCreate      = event.OpHandleCreate
	OpHandleRetain      = event.OpHandleRetain
	OpHandleImport      = event.OpHandleImport
	OpHandleRelease     = event.OpHandleRelease
	OpMap               = event.OpMap
	OpUnmap             = event.OpUnmap
	OpMapArray          = event.OpMapArray
	OpUnmapArray        = event.OpUnmapArray
	OpCaptureBegin      = event.OpCaptureBegin
	OpCaptureEnd        = event.OpCaptureEnd
	OpGraphInstantiate  = event.OpGraphInstantiate
	OpGraphMove         = event.OpGraphMove
	OpGraphDestroy      = event.OpGraphDestroy
	OpReserve           = event.OpReserve
	OpUnreserve         = event.OpUnreserve
	OpPoolCreate        = event.OpPoolCreate
	OpPoolDestroy       = event.OpPoolDestroy
	OpPoolTrim          = event.OpPoolTrim
	OpContextCreate     = event.OpContextCreate
	OpContextSeen       = event.OpContextSeen
	OpContextDestroy    = event.OpContextDestroy
	OpPrimaryReset      = event.OpPrimaryReset
	OpPrimaryRelease    = event.OpPrimaryRelease
	OpFork              = event.OpFork
	OpExec              = event.OpExec
	OpExit              = event.OpExit
	OpOutOfMemory       = event.OpOutOfMemory
	OpClient            = event.OpClient
	OpGPU               = event.OpGPU
	OpObjectDevice      = event.OpObjectDevice
	OpObject            = event.OpObject
	OpObjectInstance    = event.OpObjectInstance
	OpObjectMemory      = event.OpObjectMemory
	OpObjectShare       = event.OpObjectShare
	OpObjectFree        = event.OpObjectFree
	OpDescriptorClose   = event.OpDescriptorClose
	OpTensorAlloc       = event.OpTensorAlloc
	OpTensorFree        = event.OpTensorFree
	OpPrivatePoolBegin  = event.OpPrivatePoolBegin
	OpPrivatePoolEnd    = event.OpPrivatePoolEnd
	OpPrivatePoolMemory = event.OpPrivatePoolMemory
	OpObjectExport      = event.OpObjectExport
	OpObjectImport      = event.OpObjectImport
)

// What an Event has in Space.
const (
	SpacePointer    = event.SpacePointer
	SpaceArray      = event.SpaceArray
	SpaceRegistered = event.SpaceRegistered
	SpaceExternal   = event.SpaceExternal
)

// NoDevice is a Device that is not known, or memory that is on none.
const NoDevice = event.NoDevice
