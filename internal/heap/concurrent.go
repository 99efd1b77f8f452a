package heap

// variableName and variableDefault are where a context variable has its name, and a value for contexts
// without one.
const (
	variableName    = 16
	variableDefault = 24
)

// weakReferent is where a weak reference has the address of its object.
const weakReferent = 16

// stateWords is how many words of a thread's state are looked at.
const stateWords = 128

// contextValues adds the pairs of a node of a context's table: a variable and its value, or nothing and
// another node.
func (r *references) contextValues(at uint64, c *class) {
	pairs := r.mem.words(at+uint64(c.basic), int(min(r.mem.word(at+16), maxContext)))
	for i := 0; i+1 < len(pairs); i += 2 {
		key, value := pairs[i], pairs[i+1]
		if key == 0 {
			r.refer(value, label(kindHidden, 2), true)
		} else if r.py.typeOf(key).shape == shapeVariable {
			r.refer(value, label(kindVariable, r.keys.index(r.mem.word(key+variableName))), true)
		}
	}
}

// maxContext bounds the words of such a node.
const maxContext = 1 << 10

// threadLocals adds the dictionaries that a threading.local has for threads, in a dictionary. Its keys are
// an object of each thread, or a weak reference to that.
func (r *references) threadLocals(at uint64, c *class) {
	for _, w := range r.mem.words(at+16, (min(c.basic, maxOpaque)-16)/8) {
		if _, ok := r.objects.find(w); !ok || r.py.typeOf(w).shape != shapeDict {
			continue
		}
		r.py.eachItem(w, func(key, value uint64) bool {
			if _, weak := r.objects.find(key); weak {
				key = r.mem.word(key + weakReferent)
			}
			if r.py.typeOf(key).name == "_thread._localdummy" {
				r.dummies[key] = 0
				r.refer(value, label(kindThread, r.keys.index(key)), false)
			}
			return len(r.dummies) < maxThreads
		})
	}
}

// ownLocals finds the object that stands for a thread in the tables of threading.local: its state points
// at it, or has it in a dictionary.
func (r *references) ownLocals(state, id uint64) {
	own := func(_, w uint64) bool {
		if _, ok := r.dummies[w]; ok {
			r.dummies[w] = id
		}
		return true
	}
	if len(r.dummies) == 0 {
		return
	}
	for _, w := range r.mem.words(state, stateWords) {
		own(0, w)
		if t, ok := r.py.types[r.mem.word(w+8)]; ok && t != noType && r.py.classes[t].shape == shapeDict {
			r.py.eachItem(w, own)
		}
	}
}

// coroutine adds the coroutine of a task: its name is the next word, and then its context.
func (r *references) coroutine(at uint64, c *class) {
	words := r.mem.words(at+16, (min(c.basic, maxOpaque)-16)/8)
	for i := 0; i+2 < len(words); i++ {
		v, ok := r.objects.find(words[i])
		_, also := r.objects.find(words[i+2])
		if !ok || !also || r.py.typeOf(words[i]).shape != shapeGenerator || shortName(r.py.typeOf(words[i+2]).name) != "Context" {
			continue
		}
		if name := r.py.text(words[i+1]).kind; name == textStr || name == textInt {
			r.to(v, label(kindTask, r.keys.index(words[i+1])))
		}
	}
}

// waiting returns the frame of a generator or a coroutine that waits.
func (r *references) waiting(generator uint64) *frame {
	at := generator + uint64(r.lay.generatorFrame)
	if r.lay.minor <= 10 {
		at = r.mem.word(at)
	}
	f := &frame{code: r.mem.word(at+uint64(r.lay.code)) &^ 7}
	if r.py.isCode(f.code) {
		f.line = r.py.line(at, f.code)
	}
	return f
}
