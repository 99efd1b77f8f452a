package push

import "google.golang.org/protobuf/encoding/protowire"

// profileName is what the stores call the profiles. It is not "memory", under which they
// keep a program's own heap: the two must not be added up.
const profileName = "gpu_memory"

// An encoder makes the message of one request.
type encoder interface {
	add(*process) error
	size() int // in bytes, about
	body() []byte
}

// Field numbers that messages of Pyroscope (push/v1/push.proto, types/v1/types.proto) and
// of Parca (parca/profilestore/v1alpha1/profilestore.proto) have, most of
// them in common.
const (
	pushSeries    = 1 // PushRequest.series, of Pyroscope
	rawSeries     = 2 // WriteRawRequest.series, of Parca
	seriesLabels  = 1 // RawProfileSeries.labels
	seriesSamples = 2 // RawProfileSeries.samples
	labelPair     = 1 // of RawProfileSeries in Pyroscope, LabelSet.labels in Parca
	pairName      = 1 // LabelPair.name, Label.name
	pairValue     = 2 // LabelPair.value, Label.value
	rawProfile    = 1 // RawSample.raw_profile
	rawID         = 2 // RawSample.ID, of Pyroscope alone
)

// pyroscope makes a PushRequest.
type pyroscope struct{ message }

func (e *pyroscope) add(x *process) error {
	packed, err := x.pack(form{few: true})
	if err != nil {
		return err
	}
	var series, sample message
	// Pyroscope makes deltas of alloc_* unless this label says that they are.
	series.label("__delta__", "false")
	series.labels(x)
	sample.bytes(rawProfile, packed)
	sample.text(rawID, x.id.String())
	series.bytes(seriesSamples, sample)
	e.bytes(pushSeries, series)
	return nil
}

// parca makes a WriteRawRequest. A profile that lasts is a delta to Parca, with all of
// its values: so what was allocated and what is held are two.
type parca struct{ message }

func (e *parca) add(x *process) error {
	var series, labels message
	labels.labels(x)
	series.bytes(seriesLabels, labels)
	for _, values := range []part{allocated, held} {
		packed, err := x.pack(form{values: values})
		if err != nil {
			return err
		}
		if packed != nil {
			var sample message
			sample.bytes(rawProfile, packed)
			series.bytes(seriesSamples, sample)
		}
	}
	e.bytes(rawSeries, series)
	return nil
}

// A message is a protobuf message as it grows.
type message []byte

func (m *message) size() int    { return len(*m) }
func (m *message) body() []byte { return *m }

func (m *message) bytes(field protowire.Number, b []byte) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), b)
}

func (m *message) text(field protowire.Number, s string) { m.bytes(field, []byte(s)) }

// labels adds the labels of a series.
func (m *message) labels(x *process) {
	m.label("__name__", profileName)
	for _, l := range x.labels {
		m.label(l.Name, l.Value)
	}
}

func (m *message) label(name, value string) {
	var one message
	one.text(pairName, name)
	one.text(pairValue, value)
	m.bytes(labelPair, one)
}
