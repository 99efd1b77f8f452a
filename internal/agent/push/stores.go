package push

// profileName is what the stores call the profiles. It is not "memory", under which they
// keep a program's own heap: the two must not be added up.
const profileName = "gpu_memory"

// An encoder makes the message of one request.
type encoder interface {
	add(*process) error
	size() int // in bytes, about
	body() []byte
}

// Field numbers of Pyroscope's push/v1/push.proto and types/v1/types.proto.
const (
	pushSeries      = 1 // PushRequest.series
	pushLabels      = 1 // RawProfileSeries.labels
	pushSamples     = 2 // RawProfileSeries.samples
	pushLabelName   = 1 // LabelPair.name
	pushLabelValue  = 2 // LabelPair.value
	pushRawProfile  = 1 // RawSample.raw_profile
	pushRawIdentity = 2 // RawSample.ID
)

// pyroscope makes a PushRequest.
type pyroscope struct{ message }

func (e *pyroscope) add(x *process) error {
	packed, err := x.pack(form{few: true})
	if err != nil {
		return err
	}
	var series, sample message
	label := func(l Label) {
		var one message
		one.text(pushLabelName, l.Name)
		one.text(pushLabelValue, l.Value)
		series.bytes(pushLabels, one)
	}
	// Pyroscope makes deltas of alloc_* unless it is told that they are.
	label(Label{"__delta__", "false"})
	label(Label{"__name__", profileName})
	for _, l := range x.labels {
		label(l)
	}
	sample.bytes(pushRawProfile, packed)
	sample.text(pushRawIdentity, x.id.String())
	series.bytes(pushSamples, sample)
	e.bytes(pushSeries, series)
	return nil
}

func (e *pyroscope) size() int    { return len(e.message) }
func (e *pyroscope) body() []byte { return e.message }

// Field numbers of Parca's parca/profilestore/v1alpha1/profilestore.proto.
const (
	rawSeries     = 2 // WriteRawRequest.series
	rawLabels     = 1 // RawProfileSeries.labels
	rawSamples    = 2 // RawProfileSeries.samples
	rawLabel      = 1 // LabelSet.labels
	rawLabelName  = 1 // Label.name
	rawLabelValue = 2 // Label.value
	rawProfile    = 1 // RawSample.raw_profile
)

// parca makes a WriteRawRequest. A profile that lasts is a delta to Parca, with all of
// its values: so what was allocated and what is held are two.
type parca struct{ message }

func (e *parca) add(x *process) error {
	var series, labels message
	label := func(l Label) {
		var one message
		one.text(rawLabelName, l.Name)
		one.text(rawLabelValue, l.Value)
		labels.bytes(rawLabel, one)
	}
	label(Label{"__name__", profileName})
	for _, l := range x.labels {
		label(l)
	}
	series.bytes(rawLabels, labels)
	for _, values := range []part{allocated, held} {
		packed, err := x.pack(form{values: values})
		if err != nil {
			return err
		}
		if packed != nil {
			var sample message
			sample.bytes(rawProfile, packed)
			series.bytes(rawSamples, sample)
		}
	}
	e.bytes(rawSeries, series)
	return nil
}

func (e *parca) size() int    { return len(e.message) }
func (e *parca) body() []byte { return e.message }
