package gpu

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

const (
	u0 = "GPU-93580dcd-7db5-f6a1-9947-802b5c4fc461"
	u1 = "GPU-a6368c87-99d3-510e-7392-45ae84411bd2"
)

func twoGPUs() []Device {
	return []Device{
		{Index: 0, UUID: u0, Name: "NVIDIA H200", PCI: PCI{Bus: 0x0a, Known: true}, Minor: 0, Memory: Memory{Total: 150754820096, Known: true}},
		{Index: 1, UUID: u1, Name: "NVIDIA H200", PCI: PCI{Bus: 0x0b, Known: true}, Minor: 1, Memory: Memory{Total: 150754820096, Known: true}},
	}
}

func labels(devices []Device) string {
	var l []string
	for _, d := range devices {
		l = append(l, d.Label())
	}
	return strings.Join(l, " ")
}

// TestOrdinals has what cuInit and cuDeviceGetUuid_v2 answered to each string
// on two H200s, driver 580.159.04. "?" is what was not tried or is not certain.
func TestOrdinals(t *testing.T) {
	const unset = "\x00"
	for _, tt := range []struct{ visible, want string }{
		{unset, "0 1"}, {"", ""}, {" ", ""}, {",", ""},
		{"0", "0"}, {"1", "1"}, {"1,0", "1 0"}, {"0,1", "0 1"},
		{"0,0", ""}, {"1,0,1", ""}, {"0,00", ""}, {"1,1a", ""}, {"0,0,-1", ""}, // cuInit: 101
		{"0,2,0", "0"}, {"0,1,5,1", "0 1"},
		{"-1", ""}, {"0,-1,1", "0"}, {"1,-1,1", "1"}, {"0,2,1", "0"}, {"2,0", ""}, {"5", ""},
		{"0, 1", "0 1"}, {" 1", "1"}, {"1 ", "1"}, {"1 ,0", "1 0"}, {"0\t,1", "0 1"}, {"0\n", "0"},
		{"0,,1", "0"}, {",1", ""}, {"0,", "0"},
		{"a", ""}, {"1a", "1"}, {"0x1", "0"}, {"+1", "1"}, {"0,+1", "0 1"}, {"-0", "0"}, {"01", "1"},
		{"1.0", "1"}, {"1;0", "1"}, {"1-0", "1"}, {"\"1\"", ""}, {"0,1a,zz", "0 1"},
		{"99999999999", ""}, {"4294967296", "0"}, {"4294967297", "1"}, {"1,4294967297", ""},
		{"18446744073709551617", "?"}, // 100 there; other C libraries may differ
		{"no", ""}, {"none", ""}, {"NoDevFiles", ""}, {"all", ""}, {"void", ""},
		{u0, "0"}, {u1, "1"}, {u1 + "," + u0, "1 0"}, {u0 + "," + u0, ""}, {u0 + "," + u1 + "," + u0, ""},
		{"GPU-a6368c87", "1"}, {"GPU-a636", "1"}, {"GPU-a", "1"}, {"GPU-", ""}, {"GPU-,0", ""},
		{"GPU-a6368,GPU-a6368c", ""},
		{"GPU-A6368C87-99D3-510E-7392-45AE84411BD2", "1"},
		{"gpu-a6368c87-99d3-510e-7392-45ae84411bd2", ""}, {u1[4:], ""},
		{"GPUa6368c8799d3510e739245ae84411bd2", ""},
		{u1 + "x", "1"}, {" " + u1, ""}, {u1 + " ," + u0, "1 0"}, {u1 + ", " + u0, "1"},
		{u0 + ",GPU-zz," + u1, "0"}, {u1 + ",0", "1"}, {"0," + u1, "0"}, {"1,GPU-93580dcd", "1"},
		{"MIG-" + u1 + "/0/0", ""}, {"MIG-" + u1, ""}, {"1,MIG-GPU-x/1/0", "1"},
		{"GPU-a6368c8799d3", "?"}, {"GPU-a636 ", "?"}, {u1 + "0", "?"},
		{"GPU-f", ""}, {"GPU-f0000000-1111", ""}, {u0 + ",GPU-f", "0"},
	} {
		env := Env{Visible: tt.visible, VisibleSet: true}
		if tt.visible == unset {
			env = Env{}
		}
		got, err := Ordinals(env, twoGPUs())
		l := labels(got)
		if err != nil {
			if !errors.Is(err, ErrUnknown) || got != nil {
				t.Errorf("%q: %v, %v: want no devices and ErrUnknown", tt.visible, got, err)
			}
			l = "?"
		}
		if l != tt.want {
			t.Errorf("%q = %q (%v), want %q", tt.visible, l, err, tt.want)
		}
	}
}

func TestOrdinalsOrder(t *testing.T) {
	swapped := twoGPUs() // NVML's order is not PCI's
	swapped[0].PCI, swapped[1].PCI = swapped[1].PCI, swapped[0].PCI
	far := twoGPUs()
	far[0].PCI = PCI{Domain: 0x10000, Bus: 1, Known: true}
	mixed := twoGPUs()
	mixed[1].Name = "NVIDIA T4"
	smaller := twoGPUs()
	smaller[1].Memory.Total /= 2
	lost := twoGPUs()
	lost[1] = Device{Index: 1, Minor: -1, Reason: "lost"}
	nowhere := twoGPUs()
	nowhere[0].PCI = PCI{}
	for _, tt := range []struct {
		name    string
		env     Env
		devices []Device
		want    string
	}{
		{"default", Env{}, twoGPUs(), "0 1"},
		{"fastest", Env{Order: "FASTEST_FIRST"}, twoGPUs(), "0 1"},
		{"pci", Env{Order: "PCI_BUS_ID", Visible: "1,0", VisibleSet: true}, twoGPUs(), "1 0"},
		{"bogus", Env{Order: "bogus"}, twoGPUs(), ""},                                     // cuInit: 101
		{"case", Env{Order: "pci_bus_id", Visible: "0", VisibleSet: true}, twoGPUs(), ""}, // cuInit: 101
		{"pci order", Env{}, swapped, "1 0"},
		{"pci order, index", Env{Visible: "0", VisibleSet: true}, swapped, "1"},
		{"pci domain", Env{}, far, "1 0"},
		{"two models", Env{}, mixed, "?"},
		{"two models, index", Env{Visible: "0", VisibleSet: true}, mixed, "?"},
		{"two models, pci", Env{Order: "PCI_BUS_ID"}, mixed, "0 1"},
		{"two models, uuid", Env{Visible: "GPU-a6", VisibleSet: true}, mixed, "1"},
		{"two sizes", Env{}, smaller, "?"},
		{"lost", Env{}, lost, "?"},
		{"no address", Env{}, nowhere, "?"},
		{"one GPU", Env{}, nowhere[:1], "0"},
		{"one GPU, GPU-", Env{Visible: "GPU-", VisibleSet: true}, nowhere[:1], "?"},
		{"no GPU", Env{}, nil, ""},
	} {
		got, err := Ordinals(tt.env, tt.devices)
		l := labels(got)
		if errors.Is(err, ErrUnknown) {
			l = "?"
		}
		if l != tt.want {
			t.Errorf("%s: %q (%v), want %q", tt.name, l, err, tt.want)
		}
	}
}

func migGPUs() []Device {
	d := twoGPUs()
	d[0].MIG = true
	for i, uuid := range []string{"MIG-aaaaaaaa-0000-0000-0000-000000000000", "MIG-aaaabbbb-0000-0000-0000-000000000000"} {
		d[0].Instances = append(d[0].Instances, Device{
			Index: i, UUID: uuid, PCI: d[0].PCI, Minor: 0, Parent: u0, GPUInstance: 7 + i, ComputeInstance: 0})
	}
	return d
}

func TestOrdinalsMIG(t *testing.T) {
	one := migGPUs()
	one[0].Instances = one[0].Instances[:1]
	for _, tt := range []struct {
		visible string
		set     bool
		devices []Device
		want    string
	}{
		{"MIG-aaaabbbb-0000-0000-0000-000000000000", true, migGPUs(), "0:1"},
		{"MIG-" + u0 + "/7/0", true, migGPUs(), "0:0"},
		{"MIG-" + u0 + "/9/0", true, migGPUs(), "?"},
		{"MIG-aaaa", true, migGPUs(), "?"},
		{"MIG-aaaaaaaa-0000-0000-0000-000000000000,MIG-aaaabbbb-0000-0000-0000-000000000000", true, migGPUs(), "?"},
		{"", false, migGPUs(), "?"},
		{"", false, one, "0:0"},
		{"", true, one, ""},
		{"0", true, one, "?"},
		{u1, true, one, "?"},
	} {
		got, err := Ordinals(Env{Visible: tt.visible, VisibleSet: tt.set}, tt.devices)
		l := labels(got)
		if errors.Is(err, ErrUnknown) {
			l = "?"
		}
		if l != tt.want {
			t.Errorf("%q = %q (%v), want %q", tt.visible, l, err, tt.want)
		}
	}
}

// FuzzOrdinals: whatever a process puts into its environment, an answer has
// each device once, is a prefix-stable reading of the list, and is either
// certain or ErrUnknown.
func FuzzOrdinals(f *testing.F) {
	for _, s := range []string{"0,1", "1a, 0", "GPU-a6," + u0, "MIG-" + u0 + "/7/0", "-0,+1", "4294967297", "GPU-\xff", ",", "99999999999999999999"} {
		f.Add(s, "", false)
		f.Add(s, "PCI_BUS_ID", true)
	}
	f.Fuzz(func(t *testing.T, visible, order string, mig bool) {
		devices := twoGPUs()
		if mig {
			devices = migGPUs()
		}
		got, err := Ordinals(Env{Visible: visible, VisibleSet: true, Order: order}, devices)
		if err != nil {
			if !errors.Is(err, ErrUnknown) || got != nil {
				t.Fatalf("%v, %v", got, err)
			}
			return
		}
		var uuids []string
		for _, d := range got {
			uuids = append(uuids, d.UUID)
		}
		slices.Sort(uuids)
		if len(slices.Compact(uuids)) != len(got) {
			t.Fatalf("a device is twice in %v", got)
		}
		if len(got) == 0 || mig {
			return
		}
		// An invalid element at the end changes nothing.
		again, err := Ordinals(Env{Visible: visible + ",-1", VisibleSet: true, Order: order}, devices)
		if err == nil && labels(again) != labels(got) {
			t.Fatalf("%q: %s, with an end: %s", visible, labels(got), labels(again))
		}
	})
}
