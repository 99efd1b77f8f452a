package heap

// dict adds the entries of a dictionary.
func (r *references) dict(at uint64, kind int) {
	keys, values := r.mem.word(at+dictKeys), r.mem.word(at+dictValues)
	if values != 0 {
		values += uint64(r.lay.valuesAt)
	}
	r.entries(keys, values, kind)
}

// entries adds those of a table of keys.
func (r *references) entries(keys, values uint64, kind int) {
	r.py.eachEntry(keys, values, func(key, value uint64) bool {
		if to, ok := r.objects.find(value); ok {
			r.objects.found(to)
			r.to(to, label(kind, r.keys.index(key)))
		}
		if values == 0 {
			r.refer(key, label(kindKeyRef, 0), true)
		}
		return true
	})
}

// items adds count references that lie one after the other.
func (r *references) items(at, count uint64) {
	if count > maxItems {
		r.lost.Add(containersForged, 1)
		return
	}
	for done := uint64(0); done < count; {
		n := min(count-done, maxChunk)
		b := r.mem.bytes(at+done*8, int(n)*8)
		if b == nil || !r.mem.tick() {
			r.lost.Add(containersCut, 1)
			return
		}
		for i := range int(n) {
			r.refer(word(b[8*i:]), label(kindIndex, int(done)+i), true)
		}
		done += n
	}
}

func (r *references) set(at uint64) {
	r.eachMember(at, func(member uint64) { r.refer(member, label(kindMember, 0), true) })
}

// eachMember calls visit, which must not read, with each word of a set's table: a member, or what is none.
func (r *references) eachMember(at uint64, visit func(member uint64)) {
	slots, table := r.mem.word(at+32)+1, r.mem.word(at+40)
	if slots > 2*maxItems || slots&(slots-1) != 0 || r.mem.word(at+16) > slots {
		r.lost.Add(containersForged, 1)
		return
	}
	if r.mem.word(at+24) == 0 {
		return
	}
	for done := uint64(0); done < slots; {
		n := min(slots-done, maxChunk/2)
		b := r.mem.bytes(table+done*16, int(n)*16)
		if b == nil || !r.mem.tick() {
			r.lost.Add(containersCut, 1)
			return
		}
		for i := range int(n) {
			visit(word(b[16*i:]))
		}
		done += n
	}
}

// deque adds the items of a deque: blocks of 64, linked.
func (r *references) deque(at uint64) {
	r.eachOfDeque(at, func(i int, item uint64) { r.refer(item, label(kindIndex, i), true) })
}

// eachOfDeque calls visit with each item.
func (r *references) eachOfDeque(at uint64, visit func(i int, item uint64)) {
	const items = 64
	count, block, index := r.mem.word(at+16), r.mem.word(at+24), r.mem.word(at+40)
	if count > maxItems || index >= items {
		return
	}
	for i, blocks := uint64(0), 0; i < count && block != 0 && blocks < maxBlocks; blocks++ {
		w := r.mem.words(block, items+2)
		if len(w) < items+2 || !r.mem.tick() {
			r.lost.Add(containersCut, 1)
			return
		}
		for ; index < items && i < count; index, i = index+1, i+1 {
			visit(int(i), w[1+index])
		}
		block, index = w[1+items], 0
	}
}

// lruCache adds what functools.lru_cache remembers: the values of a dictionary, or a
// ring of links if the number of them is bounded.
func (r *references) lruCache(at uint64, c *class) {
	const cache, function, next, key, result = 72, 88, 24, 40, 48
	r.refer(r.mem.word(at+function), label(kindName, int(r.py.names.index("__wrapped__"))), true)
	r.refer(r.mem.word(at+cache), label(kindHidden, 2), true)
	if c.dictAt <= 0 && c.basic >= 136 {
		r.hidden(at, 96, c.basic)
	}
	for link, n := r.mem.word(at+next), 0; link != at && link != 0 && n < maxItems; n++ {
		b := r.mem.bytes(link, 56)
		if b == nil {
			break
		}
		link = word(b[next:])
		k, v := word(b[key:]), word(b[result:])
		r.refer(v, label(kindCached, 0), true)
		r.refer(k, label(kindKeyRef, 0), true)
		if !r.mem.tick() {
			break
		}
	}
}
