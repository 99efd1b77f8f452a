package snapshot

import "testing"

func TestClass(t *testing.T) {
	for kind, want := range map[string]string{
		"device": "device", "vmm": "device", "async": "device", "managed": "managed", "host_registered": "host",
		"vmm_host": "host", "imported": "imported", "multicast": "imported", "graph": "graph", "driver": "driver", "context": "driver", "system": "host", "": "device",
	} {
		if got := Class(kind); got != want {
			t.Errorf("Class(%q) = %q, want %q", kind, got, want)
		}
	}
}
