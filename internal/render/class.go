package render

// Class returns the class of a kind's name: bytes of one class may be added
// up, device and host bytes may not. It mirrors event.Kind.Class for readers
// that have only labels.
func Class(kind string) string {
	switch kind {
	case "managed", "imported", "graph":
		return kind
	case "multicast":
		return "imported"
	case "host", "host_registered", "vmm_host":
		return "host"
	}
	return "device"
}
