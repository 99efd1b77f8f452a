package heap

// instance returns where an instance has its attributes: a dictionary, or values
// whose names are with the type.
func (r *objectReader) instance(at uint64, c *class) (dict, values uint64) {
	m := r.mem
	if c.flags&flagManagedDict == 0 || r.lay.minor < 11 {
		offset := c.dictAt
		if offset < 0 { // from the end, behind the items
			items := int64(m.word(at + 16))
			if items < 0 {
				items = -items
			}
			item := int64(m.word(c.address + typeItem))
			if items < 0 || items > maxItems || item < 0 || item > 1<<10 {
				return 0, 0
			}
			offset += (int64(c.basic) + items*item + 7) &^ 7
		}
		if offset < 16 {
			return 0, 0
		}
		return m.word(at + uint64(offset)), 0
	}
	switch d := m.word(at - 24); {
	case r.lay.minor == 11:
		return d, m.word(at - 32)
	case r.lay.minor == 12 && d&1 != 0:
		return 0, d + 1
	case r.lay.minor == 12 || d != 0:
		return d, 0
	case c.flags&flagInlineValues != 0:
		if b := m.bytes(at+uint64(c.basic), 4); b != nil && b[3] != 0 {
			return 0, at + uint64(c.basic) + uint64(r.lay.valuesAt)
		}
	}
	return 0, 0
}

// eachItem calls visit with each entry of a dictionary.
func (r *objectReader) eachItem(dict uint64, visit func(key, value uint64) bool) {
	keys, values := r.mem.word(dict+dictKeys), r.mem.word(dict+dictValues)
	if values != 0 {
		values += uint64(r.lay.valuesAt)
	}
	r.eachEntry(keys, values, visit)
}

// eachEntry calls visit with each key and value of a table of keys. The values are
// with the keys unless they are elsewhere.
func (r *objectReader) eachEntry(keys, values uint64, visit func(key, value uint64) bool) {
	head := r.mem.bytes(keys, 40)
	if head == nil {
		return
	}
	var slots, count, at uint64
	size, keyAt := 24, 8
	if r.lay.minor <= 10 {
		slots = word(head[8:])
		width := uint64(1)
		switch {
		case slots > 0xffffffff:
			width = 8
		case slots > 0xffff:
			width = 4
		case slots > 0xff:
			width = 2
		}
		count, at = word(head[32:]), keys+40+slots*width
	} else {
		slots = 1 << min(head[8], 63)
		count, at = word(head[24:]), keys+32+(1<<min(head[9], 63))
		if head[10] != 0 {
			size, keyAt = 16, 0
		}
	}
	if count > slots || slots > 2*maxItems {
		r.lost.Add(containersForged, 1)
		return
	}
	const batch = 16
	var pairs [batch][2]uint64 // the next reads may overwrite what was read
	for done := uint64(0); done < count; {
		n := min(count-done, batch)
		b := r.mem.bytes(at+done*uint64(size), int(n)*size)
		if b == nil {
			r.lost.Add(containersCut, 1)
			return
		}
		for i := range n {
			e := b[int(i)*size+keyAt:]
			pairs[i] = [2]uint64{word(e), word(e[8:])}
		}
		if values != 0 {
			v := r.mem.bytes(values+done*8, int(n)*8)
			if v == nil {
				r.lost.Add(containersCut, 1)
				return
			}
			for i := range n {
				pairs[i][1] = word(v[i*8:])
			}
		}
		if !r.mem.tick() {
			return
		}
		for _, p := range pairs[:n] {
			if p[0] != 0 && p[1] != 0 && !visit(p[0], p[1]) {
				return
			}
		}
		done += n
	}
}

// Where an object of type module has its dictionary and its name.
const (
	moduleDict = 16
	moduleName = 48
)

// attribute returns what a module has by a name.
func (r *objectReader) attribute(module uint64, name string) (at uint64) {
	r.eachItem(r.mem.word(module+moduleDict), func(key, value uint64) bool {
		if t := r.text(key); t.kind == textStr && t.s == name {
			at = value
			return false
		}
		return true
	})
	return at
}

// instanceText returns a str that is an attribute of an instance.
func (r *objectReader) instanceText(at uint64, c *class, name string) string {
	if t := r.text(r.instanceAttribute(at, c, name)); t.kind == textStr {
		return t.s
	}
	return ""
}

// isTrue reports whether an object is True, or 1.
func (r *objectReader) isTrue(at uint64) bool { return r.text(at) == text{"1", textInt} }

// instanceAttribute returns the address of an attribute of an instance, 0 for none.
func (r *objectReader) instanceAttribute(at uint64, c *class, name string) (out uint64) {
	for _, s := range c.slots {
		if r.names.all[s.label] == name {
			return r.mem.word(at + uint64(s.at))
		}
	}
	r.attributes(at, c, func(key, value uint64) bool {
		if t := r.text(key); t.kind == textStr && t.s == name {
			out = value
			return false
		}
		return true
	})
	return out
}

// attributes calls visit with each attribute of an instance that its type has no slot for.
func (r *objectReader) attributes(at uint64, c *class, visit func(key, value uint64) bool) {
	dict, values := r.instance(at, c)
	switch {
	case dict != 0:
		r.eachItem(dict, visit)
	case values != 0 && c.cachedKeys != 0:
		r.eachEntry(c.cachedKeys, values, visit)
	}
}
