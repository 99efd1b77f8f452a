package torchsnapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// maxNesting bounds how deep a JSON file nests.
const maxNesting = 64

// readJSON reads one value.
func readJSON(r io.Reader) (*tree, value, error) {
	d := json.NewDecoder(r)
	d.UseNumber()
	t := newTree()
	v, err := t.json(d, 0)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errEnd
	}
	return t, v, err
}

func (t *tree) json(d *json.Decoder, depth int) (value, error) {
	token, err := d.Token()
	if err != nil {
		return value{}, err
	}
	switch x := token.(type) {
	case json.Delim:
		if depth >= maxNesting {
			return value{}, errors.New("it nests too deep")
		}
		if x == '[' {
			return t.jsonList(d, depth+1)
		}
		return t.jsonDict(d, depth+1)
	case string:
		if len(x) > maxText {
			return value{}, fmt.Errorf("it has a text of %d bytes", len(x))
		}
		return t.text([]byte(x)), nil
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return value{uint64(n), integer}, nil
		}
		f, err := x.Float64()
		return value{math.Float64bits(f), real}, err
	case bool:
		if x {
			return value{1, boolean}, nil
		}
		return value{0, boolean}, nil
	}
	return value{}, nil
}

func (t *tree) jsonList(d *json.Decoder, depth int) (value, error) {
	var all []value
	for d.More() {
		v, err := t.json(d, depth)
		if err != nil {
			return value{}, err
		}
		all = append(all, v)
	}
	_, err := d.Token()
	return t.list(all), err
}

func (t *tree) jsonDict(d *json.Decoder, depth int) (value, error) {
	out := t.dict()
	for d.More() {
		key, err := t.json(d, depth)
		if err != nil {
			return value{}, err
		}
		v, err := t.json(d, depth)
		if err != nil {
			return value{}, err
		}
		if err := t.set(out, key, v); err != nil {
			return value{}, err
		}
	}
	_, err := d.Token()
	return out, err
}
