// Package keyed has maps in which a key gets its value when it is first asked for.
package keyed

// At returns the value of a key, a new zero one if it had none.
func At[K comparable, V any](m map[K]*V, key K) *V {
	v := m[key]
	if v == nil {
		v = new(V)
		m[key] = v
	}
	return v
}

// Map returns the map of a key, a new empty one if it had none.
func Map[K, L comparable, V any](m map[K]map[L]V, key K) map[L]V {
	v := m[key]
	if v == nil {
		v = map[L]V{}
		m[key] = v
	}
	return v
}
