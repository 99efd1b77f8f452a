package snapshot

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// TestAllLabels: a field without a row in the table, or two rows of one field,
// would be lost by every output.
func TestAllLabels(t *testing.T) {
	var l Labels
	rows := 1 // of Who
	for i := range AllLabels {
		if !AllLabels[i].OfProcess() {
			rows++
		}
	}
	if n := reflect.TypeFor[Labels]().NumField(); n != rows {
		t.Fatalf("%d fields, %d rows", n, rows)
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
		reflect.TypeFor[Meta](), reflect.TypeFor[Process](), reflect.TypeFor[Who](), reflect.TypeFor[Account](),
		reflect.TypeFor[AccountLine](), reflect.TypeFor[GPUMemory](), reflect.TypeFor[GPUProcess](), reflect.TypeFor[Line](), reflect.TypeFor[loss.Counter](),
	} {
		for field := range of.Fields() {
			if field.Tag.Get("json") == "" && !field.Anonymous {
				t.Errorf("%v.%s has no key", of, field.Name)
			}
		}
	}
}

// TestWho: each field is one of Fields, and is learned. What is not known leaves what was.
func TestWho(t *testing.T) {
	var w Who
	if n := reflect.TypeFor[Who]().NumField(); n != len(w.Fields()) {
		t.Fatalf("%d fields, %d in Fields", n, len(w.Fields()))
	}
	for i, field := range w.Fields() {
		*field = fmt.Sprint(i)
	}
	if got := (Who{Pod: "before"}).Learn(w); got != w {
		t.Errorf("learned %+v, want %+v", got, w)
	}
	if got := w.Learn(Who{}); got != w {
		t.Errorf("learned %+v, want %+v", got, w)
	}
	if got := (Who{}).Learn(Who{Command: strings.Repeat("x", 1<<20)}); len(got.Command) != maxField {
		t.Errorf("a command of %d bytes", len(got.Command))
	}
}

// TestWhere: of a pod and a container that have no name, their ids are shown.
func TestWhere(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, x := range []struct {
		who                  Who
		pod, container, home string
	}{
		{Who{}, "", "", ""},
		{Who{ContainerID: id}, "", "0123456789ab", "container 0123456789ab"},
		{Who{ContainerID: "01"}, "", "01", "container 01"},
		{Who{PodUID: "uid", ContainerID: id}, "uid", "0123456789ab", "pod uid"},
		{Who{PodUID: "uid", Pod: "train-0", Namespace: "ml", Container: "main", ContainerID: id}, "train-0", "main", "ml/train-0/main"},
		{Who{Job: "7", Service: "slurmd.service"}, "", "", "job 7"},
		{Who{Service: "serve.service"}, "", "", "serve.service"},
	} {
		l := Labels{Who: &x.who}
		for name, want := range map[string]string{"pod": x.pod, "container": x.container} {
			i := slices.IndexFunc(AllLabels[:], func(l Label) bool { return l.Name == name })
			if got := AllLabels[i].Get(&l); got != want {
				t.Errorf("the %s of %+v is %q", name, x.who, got)
			}
		}
		if got := x.who.Home(); got != x.home {
			t.Errorf("%+v is of %q", x.who, got)
		}
	}
}
