package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// Sources are where settings are looked up: what the command line gives counts more
// than the environment, and that more than the file.
type Sources struct {
	// Flags has the values of the flags that were given, by name.
	Flags map[string][]string
	// Environment looks up a variable, as os.LookupEnv.
	Environment func(string) (string, bool)
	// File is the path of a YAML file, "" for none.
	File string
}

// variableFile names the file where no flag does.
const variableFile = "GPUMEMTRACE_CONFIG"

// separator is between the values of a list in a variable.
const separator = ";"

// Load reads every setting. The error names the source and the setting.
func (s *Sources) Load() (*Config, error) {
	path := s.File
	if v, ok := s.Environment(variableFile); ok && path == "" {
		path = v
	}
	var file map[string][]string
	if path != "" {
		var err error
		if file, err = readFile(path); err != nil {
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
	}
	c := Defaults()
	for _, set := range Settings {
		values, from, ok := s.values(set, file)
		if !ok {
			continue
		}
		if set.free != nil {
			set.free(c)
		}
		for _, v := range values {
			if err := set.set(c, v); err != nil {
				return nil, fmt.Errorf("%s: %q: %w", from, v, err)
			}
		}
	}
	return c, c.check()
}

// values returns what sets a setting, and what to call that.
func (s *Sources) values(set *Setting, file map[string][]string) (values []string, from string, ok bool) {
	if values, ok = s.Flags[set.Name]; ok {
		return values, "--" + set.Name, true
	}
	if v, ok := s.Environment(set.Variable()); ok {
		if !set.List {
			return []string{v}, set.Variable(), true
		}
		for one := range strings.SplitSeq(v, separator) {
			if one = strings.TrimSpace(one); one != "" {
				values = append(values, one)
			}
		}
		return values, set.Variable(), true
	}
	values, ok = file[set.Name]
	return values, "configuration: " + set.Name, ok
}

// readFile reads a YAML file: one mapping of settings, each a value or a list of them.
func readFile(path string) (map[string][]string, error) {
	content, _, err := userfile.Read(path, maxFile)
	if err != nil {
		return nil, err
	}
	values, err := parse(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return values, nil
}

func parse(content []byte) (map[string][]string, error) {
	var document yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(content))
	if err := d.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document")
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want settings, such as listen: localhost:9844", root.Line)
	}
	out := map[string][]string{}
	for pair := range slices.Chunk(root.Content, 2) {
		key, value := pair[0], pair[1]
		set := find(key.Value)
		_, twice := out[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || set == nil:
			return nil, fmt.Errorf("line %d: there is no setting %q", key.Line, key.Value)
		case twice:
			return nil, fmt.Errorf("line %d: %s is there twice", key.Line, key.Value)
		}
		all := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode && set.List {
			all = value.Content
		}
		values := []string{}
		for _, v := range all {
			if v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
				return nil, fmt.Errorf("line %d: %s has no value that is one", v.Line, key.Value)
			}
			values = append(values, v.Value)
		}
		out[key.Value] = values
	}
	return out, nil
}

// A Change is what a reload found.
type Change struct {
	Applied, Refused []*Setting
}

// String lists what was applied.
func (c Change) String() string {
	if len(c.Applied) == 0 {
		return "nothing changed"
	}
	var names []string
	for _, s := range c.Applied {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ") + " changed"
}

// Merge returns what runs from now on where old ran and next was read, and how they
// differ: settings that are Fixed keep the old value.
func Merge(old, next *Config) (*Config, Change) {
	merged := *next
	var c Change
	for _, set := range Settings {
		was := set.get(old)
		switch {
		case slices.Equal(was, set.get(next)):
		case set.Fixed:
			c.Refused = append(c.Refused, set)
			set.copy(&merged, old)
		default:
			c.Applied = append(c.Applied, set)
		}
	}
	return &merged, c
}
