package settings

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

// Sources are where settings are looked up: the command line counts more than the
// environment, and the environment more than the file.
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
	c := New()
	for _, set := range c.Table() {
		if values, from, ok := s.values(set, file); ok {
			if err := set.assign(values); err != nil {
				return nil, fmt.Errorf("%s: %w", from, err)
			}
		}
	}
	return c, c.Check()
}

// values returns what sets a setting, and what to call that.
func (s *Sources) values(set *Setting, file map[string][]string) (values []string, from string, ok bool) {
	if values, ok = s.Flags[set.Name]; ok {
		return values, "--" + set.Name, true
	}
	if v, ok := s.Environment(set.Variable()); ok {
		if !set.list {
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
		return nil, fmt.Errorf("line %d: want settings, such as interval: 10s", root.Line)
	}
	table := New().Table()
	out := map[string][]string{}
	for pair := range slices.Chunk(root.Content, 2) {
		key, value := pair[0], pair[1]
		at := slices.IndexFunc(table, func(s *Setting) bool { return s.Name == key.Value })
		_, twice := out[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || at < 0:
			return nil, fmt.Errorf("line %d: there is no setting %q", key.Line, key.Value)
		case twice:
			return nil, fmt.Errorf("line %d: %s appears twice", key.Line, key.Value)
		}
		all := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode && table[at].list {
			all = value.Content
		}
		values := []string{}
		for _, v := range all {
			if v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
				return nil, fmt.Errorf("line %d: the value of %s is empty, or is itself a list or a mapping", v.Line, key.Value)
			}
			values = append(values, v.Value)
		}
		out[key.Value] = values
	}
	return out, nil
}
