package perfetto

import (
	"bufio"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// Field numbers and values of Perfetto's schema (protos/perfetto/trace), by message.
const (
	traceField = 1 // Trace.packet

	packetClocks     = 6
	packetTime       = 8
	packetSequence   = 10
	packetEvent      = 11
	packetClock      = 58
	packetDescriptor = 60

	clocksClock = 1
	clockID     = 1
	clockTime   = 2

	clockRealtime  = 1
	clockMonotonic = 3
	clockBoottime  = 6

	trackUUID    = 1
	trackName    = 2
	trackProcess = 3
	trackParent  = 5
	trackCounter = 8

	processPID   = 1
	processName  = 6
	processStart = 7

	counterUnit = 3
	unitBytes   = 3

	eventArgs    = 4
	eventType    = 9
	eventTrack   = 11
	eventName    = 23
	eventCounter = 30

	typeBegin   = 1
	typeEnd     = 2
	typeInstant = 3
	typeCounter = 4

	argInt     = 4
	argText    = 6
	argPointer = 7
	argName    = 10
	argArray   = 12
)

// sequence is the number of the one packet sequence.
const sequence = 1

// A message is a protobuf message as it grows.
type message []byte

func (m *message) number(field protowire.Number, v uint64) {
	*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), v)
}

func (m *message) bytes(field protowire.Number, b []byte) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), b)
}

// text adds text that a traced program may have chosen.
func (m *message) text(field protowire.Number, s string) {
	m.bytes(field, []byte(render.Cut(s, maxText)))
}

// maxText bounds a name, in bytes.
const maxText = 256

// args are a TrackEvent's debug annotations.
type args struct{ message }

func (a *args) value(name string, set func(*message)) {
	var one message
	one.text(argName, name)
	set(&one)
	a.bytes(eventArgs, one)
}

func (a *args) int(name string, v int64) {
	a.value(name, func(m *message) { m.number(argInt, uint64(v)) })
}

// text adds a text that is not empty.
func (a *args) text(name, v string) {
	if v != "" {
		a.value(name, func(m *message) { m.text(argText, v) })
	}
}

func (a *args) pointer(name string, v uint64) {
	a.value(name, func(m *message) { m.number(argPointer, v) })
}

func (a *args) texts(name string, all []string) {
	a.value(name, func(m *message) {
		for _, s := range all {
			var one message
			one.text(argText, s)
			m.bytes(argArray, one)
		}
	})
}

// A writer writes packets, each of a few hundred bytes.
type writer struct {
	w            *bufio.Writer
	err          error // the first
	packet, body message
	head         []byte
	tracks       uint64 // UUIDs given
}

// flush writes the packet with w.body as its field.
func (w *writer) flush(field protowire.Number) {
	w.packet.bytes(field, w.body)
	w.packet.number(packetSequence, sequence)
	w.head = protowire.AppendVarint(protowire.AppendTag(w.head[:0], traceField, protowire.BytesType), uint64(len(w.packet)))
	for _, b := range [][]byte{w.head, w.packet} {
		if _, err := w.w.Write(b); err != nil && w.err == nil {
			w.err = err
		}
	}
}

// begin begins a packet, at a time of CLOCK_MONOTONIC.
func (w *writer) begin(time uint64) {
	w.packet, w.body = w.packet[:0], w.body[:0]
	w.packet.number(packetTime, time)
	w.packet.number(packetClock, clockMonotonic)
}

// clocks says how the clocks compare at a time, when the machine had slept so long since
// it was booted, and CLOCK_MONOTONIC was zero at boot (in nanoseconds since 1970).
func (w *writer) clocks(time, slept uint64, boot int64) {
	w.begin(time)
	for _, c := range []struct{ id, time uint64 }{{clockMonotonic, time}, {clockBoottime, time + slept}, {clockRealtime, uint64(boot) + time}} {
		var one message
		one.number(clockID, c.id)
		one.number(clockTime, c.time)
		w.body.bytes(clocksClock, one)
	}
	w.flush(packetClocks)
}

// process declares a process and returns its UUID.
func (w *writer) process(id event.Process, name string) uint64 {
	var one message
	one.number(processPID, uint64(int32(id.PID)))
	if name != "" {
		one.text(processName, name)
	}
	one.number(processStart, id.Start)
	return w.track("", 0, trackProcess, one)
}

// counter declares a track of bytes below a parent, 0 for none.
func (w *writer) counter(name string, parent uint64) uint64 {
	var one message
	one.number(counterUnit, unitBytes)
	return w.track(name, parent, trackCounter, one)
}

// track declares a track with a field of its own, 0 for none, and returns its UUID.
func (w *writer) track(name string, parent uint64, field protowire.Number, of message) uint64 {
	w.tracks++
	w.packet, w.body = w.packet[:0], w.body[:0]
	w.body.number(trackUUID, w.tracks)
	if name != "" {
		w.body.text(trackName, name)
	}
	if field != 0 {
		w.body.bytes(field, of)
	}
	if parent != 0 {
		w.body.number(trackParent, parent)
	}
	w.flush(packetDescriptor)
	return w.tracks
}

// value says what a counter is from a time on.
func (w *writer) value(track, time uint64, v int64) {
	w.event(track, time, typeCounter)
	w.body.number(eventCounter, uint64(v))
	w.flush(packetEvent)
}

// named writes an event with a name, or an instant.
func (w *writer) named(track, time, kind uint64, name string, args []byte) {
	w.event(track, time, kind)
	w.body.text(eventName, name)
	w.body = append(w.body, args...)
	w.flush(packetEvent)
}

// end ends the slice that began last on a track.
func (w *writer) end(track, time uint64) {
	w.event(track, time, typeEnd)
	w.flush(packetEvent)
}

func (w *writer) event(track, time, kind uint64) {
	w.begin(time)
	w.body.number(eventType, kind)
	w.body.number(eventTrack, track)
}
