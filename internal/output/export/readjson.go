package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// errJSON means that what is read is no snapshot that writeJSON wrote.
var errJSON = errors.New("it refers to what is not in it")

// ReadJSON reads what JSON or LiveJSON wrote, but for readings of heaps and tensors of windows.
// now is a pointer to what the key "now" is read into. Samples have no Who: Processes do.
func ReadJSON(r io.Reader, now any) (*snapshot.Snapshot, error) {
	in := jsonDocument{Now: now}
	d := json.NewDecoder(r)
	d.UseNumber()
	if err := d.Decode(&in); err != nil {
		return nil, fmt.Errorf("read a snapshot: %w", err)
	}
	if in.Version != JSONVersion {
		return nil, fmt.Errorf("read a snapshot: version %d, this gpumemtrace knows %d", in.Version, JSONVersion)
	}
	s, err := in.snapshot()
	if err != nil {
		return nil, fmt.Errorf("read a snapshot: %w", err)
	}
	return s, nil
}

type jsonDocument struct {
	Version    int `json:"schema_version"`
	Now        any
	Meta       snapshot.Meta
	Processes  []snapshot.Process
	Mappings   []jsonMapping
	Locations  []jsonLocation
	Samples    []jsonSample
	Accounts   []snapshot.Account
	Allocators []snapshot.Allocator
	Live       []jsonLive
	Loss       []loss.Counter
	Notes      []string
}

type jsonSample struct {
	Stack  []int
	Labels map[string]any // a string or a json.Number
	Values map[string]int64
}

type jsonLive struct {
	Sample          int
	Address, Handle jsonAddress
	Size            int64 `json:"size_bytes"`
	Time            time.Time
}

// UnmarshalText is the reverse of MarshalText.
func (a *jsonAddress) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 0, 64)
	*a = jsonAddress(n)
	return err
}

// snapshot returns errJSON if something that in refers to is not there.
func (in *jsonDocument) snapshot() (*snapshot.Snapshot, error) {
	s := &snapshot.Snapshot{Meta: in.Meta, Processes: in.Processes, Accounts: in.Accounts, Allocators: in.Allocators, Loss: in.Loss, Notes: in.Notes}
	for _, m := range in.Mappings {
		s.Mappings = append(s.Mappings, &snapshot.Mapping{Start: uint64(m.Start), Limit: uint64(m.Limit), Offset: uint64(m.Offset), Path: m.Path, BuildID: m.BuildID})
	}
	locations := make([]*snapshot.Location, len(in.Locations))
	for i, l := range in.Locations {
		locations[i] = &snapshot.Location{Address: uint64(l.Address), Lines: l.Lines}
		if len(l.Lines) == 0 {
			return nil, errJSON
		}
		if l.Mapping != nil {
			if *l.Mapping < 0 || *l.Mapping >= len(s.Mappings) {
				return nil, errJSON
			}
			locations[i].Mapping = s.Mappings[*l.Mapping]
		}
	}
	s.Samples = make([]snapshot.Sample, len(in.Samples))
	for i := range in.Samples {
		if err := in.Samples[i].into(&s.Samples[i], locations); err != nil {
			return nil, err
		}
	}
	for _, a := range in.Live {
		if a.Sample < 0 || a.Sample >= len(s.Samples) {
			return nil, errJSON
		}
		s.Live = append(s.Live, snapshot.Allocation{Sample: a.Sample, Address: uint64(a.Address), Handle: uint64(a.Handle), Size: a.Size, Time: a.Time})
	}
	return s, nil
}

func (x *jsonSample) into(to *snapshot.Sample, locations []*snapshot.Location) error {
	for _, n := range x.Stack {
		if n < 0 || n >= len(locations) {
			return errJSON
		}
		to.Stack = append(to.Stack, locations[n])
	}
	for i := range snapshot.AllLabels {
		l := &snapshot.AllLabels[i]
		if value, ok := x.Labels[l.Name]; ok {
			if err := l.Set(&to.Labels, fmt.Sprint(value)); err != nil {
				return err
			}
		}
	}
	for i := range snapshot.AllValues {
		v := &snapshot.AllValues[i]
		*v.Of(&to.Values) = x.Values[v.Key]
	}
	return nil
}
