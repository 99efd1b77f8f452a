// Package settings has the settings of a trace and of the agent. Each is one row of a
// table, with its name, default, help and check. The command line, the environment, the
// agent's configuration file and the documentation are made from that table.
package settings

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
)

// A Setting is one row of a table. It is bound to a field, whose value at the time when the
// table is made is the default. It is a pflag.Value.
type Setting struct {
	Group, Name string
	kind
	// Fixed settings cannot change while the agent runs.
	Fixed bool
	Help  string
}

// A kind says how text becomes the value of a field.
type kind struct {
	name  string // in help texts
	list  bool   // the field has several values
	set   func(string) error
	get   func() []string // none for a zero value
	clear func()
}

// Variable returns the name of the environment variable for the setting.
func (s *Setting) Variable() string {
	return "GPUMEMTRACE_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Values returns the values of the field as text, none for a zero value.
func (s *Setting) Values() []string { return s.get() }

// String returns the values as one text.
func (s *Setting) String() string { return strings.Join(s.get(), " ") }

// Type names the value in help texts.
func (s *Setting) Type() string {
	if s.list {
		return s.name + ", repeatable"
	}
	return s.name
}

// Set checks a value and gives it to the field. A list gets one value more.
func (s *Setting) Set(text string) error { return s.set(text) }

// assign gives the field other values.
func (s *Setting) assign(values []string) error {
	s.clear()
	for _, v := range values {
		if err := s.set(v); err != nil {
			return fmt.Errorf("%q: %w", v, err)
		}
	}
	return nil
}

// single is the kind of a field with one value.
func single[T comparable](name string, field *T, parse func(string) (T, error), format func(T) string) kind {
	var zero T
	return kind{
		name: name,
		set: func(text string) error {
			v, err := parse(text)
			if err == nil {
				*field = v
			}
			return err
		},
		get: func() []string {
			if *field == zero {
				return nil
			}
			return []string{format(*field)}
		},
		clear: func() { *field = zero },
	}
}

func text(field *string) kind {
	same := func(v string) string { return v }
	return single("string", field, func(v string) (string, error) { return v, nil }, same)
}

// oneOf is a text out of a few.
func oneOf[T ~string](field *string, all ...T) kind {
	k := text(field)
	k.set = func(v string) error {
		if !slices.Contains(all, T(v)) {
			return fmt.Errorf("use one of %s", strings.Trim(fmt.Sprint(all), "[]"))
		}
		*field = v
		return nil
	}
	return k
}

// texts is a list, each value of which passes a check.
func texts(field *[]string, check func(string) error) kind {
	return kind{
		name: "string", list: true,
		set: func(v string) error {
			if err := check(v); err != nil {
				return err
			}
			*field = append(slices.Clip(*field), v)
			return nil
		},
		get:   func() []string { return *field },
		clear: func() { *field = nil },
	}
}

func flag(field *bool) kind {
	return single("bool", field, func(v string) (bool, error) {
		switch v {
		case "true", "1":
			return true, nil
		case "false", "0":
			return false, nil
		}
		return false, errors.New("give true or false")
	}, strconv.FormatBool)
}

func number(field *int, least int) kind {
	return single("int", field, func(v string) (int, error) {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > math.MaxInt32 {
			return 0, fmt.Errorf("give a whole number of at least %d", least)
		}
		return n, nil
	}, strconv.Itoa)
}

func size(field *int64, least int64) kind {
	return single("size", field, func(v string) (int64, error) {
		n, err := bytefmt.Parse(v)
		if err == nil && n < least {
			err = fmt.Errorf("give %s at least", bytefmt.Exact(least))
		}
		return n, err
	}, bytefmt.Exact)
}

func duration(field *time.Duration, least time.Duration) kind {
	return single("duration", field, func(v string) (time.Duration, error) {
		if v == "off" {
			v = "0s"
		}
		d, err := time.ParseDuration(v)
		if err != nil || d < least {
			return 0, fmt.Errorf("give a duration such as 30s, of at least %v", least)
		}
		return d, nil
	}, time.Duration.String)
}

// cores is a part of one core, such as 5%, or a number of cores.
func cores(field *float64) kind {
	return single("cpu", field, func(v string) (float64, error) {
		number, percent := strings.CutSuffix(v, "%")
		f, err := strconv.ParseFloat(number, 64)
		if percent {
			f /= 100
		}
		if err != nil || !(f >= 0.001 && f <= 1024) {
			return 0, errors.New("give a part of a core, such as 5%, or a number of cores, such as 0.05")
		}
		return f, nil
	}, func(f float64) string { return strconv.FormatFloat(f*100, 'g', 6, 64) + "%" })
}
