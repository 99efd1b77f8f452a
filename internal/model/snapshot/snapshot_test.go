package snapshot

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// TestAllLabels: a field without a row in the table, or two rows of one field,
// would be lost by every output.
func TestAllLabels(t *testing.T) {
	var l Labels
	if n := reflect.TypeFor[Labels]().NumField(); n != len(AllLabels) {
		t.Fatalf("%d fields, %d rows", n, len(AllLabels))
	}
	names, columns := map[string]bool{}, map[int]bool{}
	for i := range AllLabels {
		row := &AllLabels[i]
		if got := row.Get(&l); got != "" {
			t.Errorf("%s is %q before it is set", row.Name, got)
		}
		if err := row.Set(&l, fmt.Sprint(i+1)); err != nil {
			t.Error(err)
		}
		if names[row.Name] || row.Column != 0 && columns[row.Column] {
			t.Errorf("%s or its column is there twice", row.Name)
		}
		names[row.Name], columns[row.Column] = true, true
	}
	for i := range AllLabels {
		if got := AllLabels[i].Get(&l); got != fmt.Sprint(i+1) {
			t.Errorf("%s is %q, want %d", AllLabels[i].Name, got, i+1)
		}
	}
	for i := range reflect.ValueOf(l).NumField() {
		if reflect.ValueOf(l).Field(i).IsZero() {
			t.Errorf("no row sets %s", reflect.TypeFor[Labels]().Field(i).Name)
		}
	}
	for i := 1; i < len(columns)-1; i++ {
		if !columns[i] {
			t.Errorf("no label has column %d", i)
		}
	}
}

func TestLabelSet(t *testing.T) {
	for i := range AllLabels {
		var l Labels
		for _, s := range []string{"-1", "x", "1 ", "99999999999999999999"} {
			if err := AllLabels[i].Set(&l, s); (err != nil) != AllLabels[i].Numeric() {
				t.Errorf("%s = %q: %v", AllLabels[i].Name, s, err)
			}
		}
		if err := AllLabels[i].Set(&l, ""); err != nil || l != (Labels{}) {
			t.Errorf("%s = \"\": %v, %v", AllLabels[i].Name, l, err)
		}
	}
}

func TestLabelsCompare(t *testing.T) {
	a := Labels{Kind: "device", PID: 7}
	for i := range AllLabels {
		b := a
		if err := AllLabels[i].Set(&b, "8"); err != nil {
			t.Fatal(err)
		}
		if x, y := a.Compare(&b), b.Compare(&a); x == 0 || x != -y {
			t.Errorf("%s: compared %d and %d", AllLabels[i].Name, x, y)
		}
	}
	if a.Compare(&a) != 0 {
		t.Error("labels differ from themselves")
	}
}

func TestAllValues(t *testing.T) {
	if n := reflect.TypeFor[Values]().NumField(); n != len(AllValues) {
		t.Fatalf("%d fields, %d rows", n, len(AllValues))
	}
	var v Values
	for i := range AllValues {
		*AllValues[i].Of(&v) += int64(i + 1)
	}
	twice := v
	twice.Add(&v)
	for i := range AllValues {
		if a, b := *AllValues[i].Of(&v), *AllValues[i].Of(&twice); a != int64(i+1) || b != 2*a {
			t.Errorf("%s is %d, and twice that %d", AllValues[i].Name, a, b)
		}
	}
	twice.Sub(&v)
	if twice != v {
		t.Errorf("%v, want %v", twice, v)
	}
}

func TestSucceeded(t *testing.T) {
	for i := range AllValues {
		var v Values
		*AllValues[i].Of(&v) = 1
		if got := v.Succeeded(); got == AllValues[i].Failed {
			t.Errorf("%s alone: %t", AllValues[i].Name, got)
		}
	}
}

func TestSeveral(t *testing.T) {
	one := Snapshot{Processes: []Process{{PID: 1}}, Samples: []Sample{{Labels: Labels{PID: 1}}}}
	if one.Several() || (&Snapshot{}).Several() {
		t.Error("several processes, want one and none")
	}
	one.Samples[0].PID = 2
	if !one.Several() {
		t.Error("one process, want two")
	}
}

// TestJSONKeys: a field without a key would come into the JSON output under its
// Go name.
func TestJSONKeys(t *testing.T) {
	for _, of := range []reflect.Type{
		reflect.TypeFor[Meta](), reflect.TypeFor[Process](), reflect.TypeFor[Account](),
		reflect.TypeFor[AccountLine](), reflect.TypeFor[GPUMemory](), reflect.TypeFor[GPUProcess](), reflect.TypeFor[Line](), reflect.TypeFor[loss.Counter](),
	} {
		for field := range of.Fields() {
			if field.Tag.Get("json") == "" {
				t.Errorf("%v.%s has no key", of, field.Name)
			}
		}
	}
}
